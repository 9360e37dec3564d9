"""Decode attention in Triton: one program per (KV head, place in the batch, split of the row's old tokens).

The program of split 0 owns the new tokens, the newest and what is drafted behind it: their rotated keys and their values, still
in registers, begin the online softmax (Milakov and Gimelshein 2018) and are written to their cache slots. Every program then walks old positions
only, so no program reads what another one of this launch writes. Splits leave an unnormalised sum, its maximum and
its weight (flash-decoding, Dao et al. 2023); a second kernel adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.kept import narrowed, scaled, wide_dtype, widened
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.softmax import LOG2_E, NOTHING, visit


@triton.jit
def _share(length, window, split, num_splits, WINDOWED: tl.constexpr, TILE: tl.constexpr):
    """The old positions [begin, end) of one split; begin >= end if there is nothing for it to do."""
    first = tl.maximum(length - window, 0) if WINDOWED else 0
    # Whole tiles to each split, or two programs would each pad one; the last splits may be left with none.
    tiles = tl.cdiv(length - 1 - first, TILE)
    share = tl.cdiv(tiles, num_splits) * TILE
    begin = first + split * share
    return begin, tl.minimum(begin + share, length - 1)


@triton.jit
def _offsets(blocks, block_stride, positions, head, BLOCK_SIZE: tl.constexpr, D: tl.constexpr):
    """Where positions lie in blocks [KV_HEADS, BLOCK_SIZE, D] so far apart; 64 bits, as pools exceed 2**31 elements."""
    return blocks.to(tl.int64) * block_stride + head * (BLOCK_SIZE * D) + positions % BLOCK_SIZE * D


@triton.jit
def _rotation(rotations_ptr, position, D: tl.constexpr, PADDED_D: tl.constexpr):
    """Cosines and sines of a position, the sines negated in the first half, each [PADDED_D]; of positions [N, 1], [N, PADDED_D]."""
    d = tl.arange(0, PADDED_D)
    angle_ptr = rotations_ptr + position * D + d % (D // 2)
    cos = tl.load(angle_ptr, mask=d < D, other=0.0)
    sin = tl.load(angle_ptr + D // 2, mask=d < D, other=0.0)
    return cos, tl.where(d < D // 2, -sin, sin)


@triton.jit
def _normed_and_rotated(
    token_ptr, heads, shown, norm_ptr, cos, sin, eps,
    NORM: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
):  # fmt: skip
    """Heads of one token, or each of its own, in float32, [heads, PADDED_D]: an RMS norm if NORM, then rope; zero if not shown."""
    d = tl.arange(0, PADDED_D)
    swapped = (d + D // 2) % D
    mask = shown[:, None] & (d < D)[None, :]
    x = tl.load(token_ptr + heads[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(token_ptr + heads[:, None] * D + swapped[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x *= inverse * tl.load(norm_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        y *= inverse * tl.load(norm_ptr + swapped, mask=d < D, other=0.0).to(tl.float32)[None, :]
    return x * cos + y * sin


@triton.jit
def _load_first(
    keys_ptr, values_ptr, table_ptr, block_stride, positions, seen, head,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
):  # fmt: skip
    """The keys and values of a tile, [TILE, PADDED_D], and which of their elements were seen: others are garbage."""
    d = tl.arange(0, PADDED_D)
    mask = seen[:, None] & (d < D)[None, :]
    blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=seen, other=0)
    at = _offsets(blocks, block_stride, positions, head, BLOCK_SIZE, D)[:, None] + d[None, :]
    return tl.load(keys_ptr + at, mask=mask), tl.load(values_ptr + at, mask=mask), mask


@triton.jit
def _load_tile(keys_ptr, values_ptr, at, D: tl.constexpr, PADDED_D: tl.constexpr):
    """The keys, [PADDED_D, TILE], and values, [TILE, PADDED_D], at the offsets of a full tile; padding is zero."""
    d = tl.arange(0, PADDED_D)
    keys_ptr += at[None, :] + d[:, None]
    values_ptr += at[:, None] + d[None, :]
    if PADDED_D == D:
        return tl.load(keys_ptr), tl.load(values_ptr)
    keys = tl.load(keys_ptr, mask=(d < D)[:, None], other=0.0)
    return keys, tl.load(values_ptr, mask=(d < D)[None, :], other=0.0)


@triton.jit
def capped(scores, cap):
    """Scores in units of log2; under a cap they come as 2 log2(e) s / cap and leave as log2(e) cap tanh(s / cap)."""
    if cap is not None:
        scores = cap * LOG2_E * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    return scores


@triton.jit
def _repeated(x, rows, TIMES: tl.constexpr):
    """Vectors x [N] and rows [N, M], as often behind themselves as TIMES says."""
    if TIMES > 1:
        N: tl.constexpr = rows.shape[0]
        M: tl.constexpr = rows.shape[1]
        x = tl.reshape(tl.broadcast_to(x[None, :], [TIMES, N]), [TIMES * N])
        rows = tl.reshape(tl.broadcast_to(rows[None, :, :], [TIMES, N, M]), [TIMES * N, M])
    return x, rows


@triton.jit
def _begin_newest(
    token_ptr, keys_ptr, values_ptr, slot, split, head, cos, sin, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale,
    scale, cap, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, COMPUTED: tl.constexpr,
    NORM: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The queries of a KV head, and the softmax begun; split 0 writes the newest token into the cache.

    COMPUTED heads, a power of two, are normed and rotated; as often repeated as they fit, they fill the PADDED_GROUP.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    dtype = token_ptr.dtype.element_ty
    kept = keys_ptr.dtype.element_ty
    d, g, mine = tl.arange(0, PADDED_D), tl.arange(0, PADDED_GROUP), tl.arange(0, COMPUTED)
    newest = split == 0
    q = _normed_and_rotated(
        token_ptr, head * GROUP + mine, mine < GROUP, q_norm_ptr, cos, sin, eps, NORM, D, PADDED_D
    )
    q = scaled(q * (scale * LOG2_E), key_scale).to(WIDE)
    one = tl.arange(0, 1)
    key = _normed_and_rotated(
        token_ptr, HEADS + head + one, one == split, k_norm_ptr, cos, sin, eps, NORM, D, PADDED_D
    ).to(dtype)
    # Only split 0 reads and writes the newest token: the mask of the others is empty, and their key and value are zero.
    written = (d < tl.where(newest, D, 0))[None, :]
    value = tl.load(token_ptr + (HEADS + KV_HEADS + head) * D + d[None, :], mask=written, other=0.0)
    key, value = narrowed(key, key_scale, kept), narrowed(value, value_scale, kept)
    tl.store(keys_ptr + slot + d[None, :], key, mask=written)
    tl.store(values_ptr + slot + d[None, :], value, mask=written)

    own = tl.sum(q.to(tl.float32) * key.to(tl.float32), axis=1)
    own, q = _repeated(own, q, PADDED_GROUP // COMPUTED)
    m, l, acc = _begin_softmax(q, own, value, newest, cap, sinks_ptr, head * GROUP + g, g < GROUP)
    return q, m, l, acc


@triton.jit
def _begin_softmax(q, own, value, newest, cap, sinks_ptr, heads, shown):
    """Split 0 begins with the newest token's own term, its scores `own`, and with what sinks weigh.

    Others begin with an empty sum, whose weight is worth 2**NOTHING, zero.
    """
    own = capped(own, cap)
    m = tl.where(newest, own, NOTHING)
    l = tl.full(own.shape, 1.0, tl.float32)
    acc = tl.zeros(q.shape, tl.float32) + value.to(tl.float32)
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + heads, mask=shown, other=0.0).to(tl.float32) * LOG2_E
        sinks = tl.where(newest, sinks, NOTHING)
        m_new = tl.maximum(m, sinks)
        alpha = tl.exp2(m - m_new)
        l = alpha + tl.exp2(sinks - m_new)
        acc *= alpha[:, None]
        m = m_new
    return m, l, acc


@triton.jit
def _begin_wide(
    token_ptr, token_stride, keys_ptr, values_ptr, table_ptr, block_stride, length, limit, window, split, head, rotations_ptr,
    q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale, scale, cap, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr, NORM: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """As `_begin_newest`, of WIDTH tokens from position length - 1 on: queries of token after token, each of which sees keys up to its own.

    Slots from position `limit` - 1 on are not written: the row ends before what stands there is read.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    dtype = token_ptr.dtype.element_ty
    kept_as = keys_ptr.dtype.element_ty
    d, g, new = tl.arange(0, PADDED_D), tl.arange(0, PADDED_GROUP), tl.arange(0, 16)
    own, heads, shown = tl.minimum(g // GROUP, WIDTH - 1), head * GROUP + g % GROUP, g < GROUP * WIDTH
    cos, sin = _rotation(rotations_ptr, (length - 1 + own)[:, None], D, PADDED_D)
    tokens_ptr = token_ptr + (own * token_stride)[:, None]
    q = _normed_and_rotated(tokens_ptr, heads, shown, q_norm_ptr, cos, sin, eps, NORM, D, PADDED_D)
    q = scaled(q * (scale * LOG2_E), key_scale).to(WIDE)

    positions = length - 1 + new
    mine = (new < WIDTH) & (split == 0)
    mask = mine[:, None] & (d < D)[None, :]
    cos, sin = _rotation(rotations_ptr, tl.where(mine, positions, 0)[:, None], D, PADDED_D)
    tokens_ptr = token_ptr + (new * token_stride)[:, None]
    key_head = HEADS + head + new * 0
    key = _normed_and_rotated(tokens_ptr, key_head, mine, k_norm_ptr, cos, sin, eps, NORM, D, PADDED_D).to(
        dtype
    )
    value = tl.load(tokens_ptr + (HEADS + KV_HEADS + head) * D + d[None, :], mask=mask, other=0.0)
    key, value = narrowed(key, key_scale, kept_as), narrowed(value, value_scale, kept_as)
    kept = mine & (positions < limit - 1)
    blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=kept, other=0)
    slots = _offsets(blocks, block_stride, positions, head, BLOCK_SIZE, D)[:, None] + d[None, :]
    tl.store(keys_ptr + slots, key, mask=mask & kept[:, None])
    tl.store(values_ptr + slots, value, mask=mask & kept[:, None])

    m, l = tl.full([PADDED_GROUP], NOTHING, tl.float32), tl.full([PADDED_GROUP], 1.0, tl.float32)
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + heads, mask=shown, other=0.0).to(tl.float32) * LOG2_E
        m = tl.where(split == 0, sinks, NOTHING)
    scores = capped(tl.dot(q, tl.trans(key.to(WIDE)), input_precision="ieee"), cap)
    seen = mine[None, :] & (new[None, :] <= own[:, None])
    if WINDOWED:
        seen &= new[None, :] + window > own[:, None]
    scores = tl.where(seen, scores, float("-inf"))
    m, l, acc = visit(m, l, tl.zeros([PADDED_GROUP, PADDED_D], tl.float32), scores, value.to(WIDE), None)
    return q, m, l, acc


@triton.jit
def _begin(
    token_ptr, token_stride, keys_ptr, values_ptr, table_ptr, block_stride, slot, length, limit, window, split, head, cos, sin,
    rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale, scale, cap, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, COMPUTED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOWED: tl.constexpr, NORM: tl.constexpr, D: tl.constexpr, PADDED_D: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The queries of a KV head, and the softmax begun; see the two above."""
    if WIDTH == 1:
        q, m, l, acc = _begin_newest(
            token_ptr, keys_ptr, values_ptr, slot, split, head, cos, sin, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale,
            scale, cap, eps, HEADS, KV_HEADS, PADDED_GROUP, COMPUTED, NORM, D, PADDED_D, WIDE,
        )  # fmt: skip
    else:
        q, m, l, acc = _begin_wide(
            token_ptr, token_stride, keys_ptr, values_ptr, table_ptr, block_stride, length, limit, window, split, head,
            rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale, scale, cap, eps, HEADS, KV_HEADS, PADDED_GROUP,
            WIDTH, BLOCK_SIZE, WINDOWED, NORM, D, PADDED_D, WIDE,
        )  # fmt: skip
    return q, m, l, acc


@triton.jit
def _inside(scores, positions, own, length, window, WIDTH: tl.constexpr, WINDOWED: tl.constexpr):
    """Scores [PADDED_GROUP, TILE] of old positions without those that left the windows of later tokens."""
    if WINDOWED and WIDTH > 1:
        scores = tl.where(positions[None, :] + window > (length - 1 + own)[:, None], scores, float("-inf"))
    return scores


@triton.jit(do_not_specialize=["table_stride", "window"])
def attend_to_rows(
    qkv_ptr, keys_ptr, values_ptr, out_ptr, accs_ptr, ms_ptr, ls_ptr, batch_rows_ptr, lengths_ptr, limits_ptr,
    tables_ptr, rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, scales_ptr, token_stride, table_stride, block_stride, window, scale,
    cap, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED_GROUP: tl.constexpr, D: tl.constexpr,
    PADDED_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    WIDTH: tl.constexpr, WINDOWED: tl.constexpr, NORM: tl.constexpr, SPLIT: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (h, b, s): softmax(scale q K^T) V of the query heads of KV head h at place b, over split s of its row.

    A place has WIDTH tokens, all of whose queries read a tile that is loaded once.

    q [PADDED_GROUP, PADDED_D], a tile of keys and of values [TILE, PADDED_D]; m, l and acc as in `device.softmax`.

    EARLY: the wait and all that follows from the query stand in the first round of the loop. The compiler fetches the tiles of
    the first rounds before the loop, so before the wait. Without it, what does not fill a tile comes before the loop, whose
    tiles are full and need no mask.
    """
    let_next_start(PDL)
    head = tl.program_id(0)
    place = tl.program_id(1)
    split = tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(batch_rows_ptr + place)
    length = tl.load(lengths_ptr + row)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    begin, end = _share(length, window, split, tl.num_programs(2), WINDOWED, TILE)
    limit = tl.load(limits_ptr + row) if limits_ptr is not None else 0
    writer = split if limits_ptr is None else tl.where(length < limit, split, 1)
    block = tl.load(table_ptr + (length - 1) // BLOCK_SIZE, mask=split == 0, other=0)
    slot = _offsets(block, block_stride, length - 1, head, BLOCK_SIZE, D)
    cos, sin = _rotation(rotations_ptr, length - 1, D, PADDED_D)
    token_ptr = qkv_ptr + place * WIDTH * token_stride
    key_scale, value_scale = None, None
    if scales_ptr is not None:
        key_scale, value_scale = tl.load(scales_ptr + head), tl.load(scales_ptr + KV_HEADS + head)
    WIDE: tl.constexpr = wide_dtype(qkv_ptr.dtype.element_ty, scales_ptr is not None)
    tile = tl.arange(0, TILE)
    d = tl.arange(0, PADDED_D)
    g = tl.arange(0, PADDED_GROUP)
    own = g // GROUP
    if EARLY:
        COMPUTED: tl.constexpr = triton.next_power_of_2(GROUP)
        q = tl.zeros([PADDED_GROUP, PADDED_D], WIDE)
        m, l = tl.full([PADDED_GROUP], NOTHING, tl.float32), tl.full([PADDED_GROUP], 1.0, tl.float32)
        acc = tl.zeros([PADDED_GROUP, PADDED_D], tl.float32)
        # At least one round: every program has to wait, and split 0 to write the newest token.
        first_round = end - tl.maximum(tl.cdiv(end - begin, TILE), 1) * TILE
        for start in tl.range(first_round, end, TILE, num_stages=STAGES):
            positions = start + tile
            seen = positions >= begin
            blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=seen, other=0)
            at = _offsets(blocks, block_stride, positions, head, BLOCK_SIZE, D)
            k_ptrs, v_ptrs = keys_ptr + at[None, :] + d[:, None], values_ptr + at[:, None] + d[None, :]
            k = tl.load(k_ptrs, mask=(d < D)[:, None] & seen[None, :], other=0.0)
            v = tl.load(v_ptrs, mask=(d < D)[None, :] & seen[:, None], other=0.0)
            if start == first_round:
                wait_for_last(PDL)
                q, m, l, acc = _begin(
                    token_ptr, token_stride, keys_ptr, values_ptr, table_ptr, block_stride, slot, length, limit, window, writer, head,
                    cos, sin, rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale, scale, cap, eps, HEADS, KV_HEADS,
                    PADDED_GROUP, COMPUTED, WIDTH, BLOCK_SIZE, WINDOWED, NORM, D, PADDED_D, WIDE,
                )  # fmt: skip
            scores = capped(tl.dot(q, k.to(WIDE), input_precision="ieee"), cap)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            scores = _inside(scores, positions, own, length, window, WIDTH, WINDOWED)
            m, l, acc = visit(m, l, acc, scores, widened(v, WIDE), None)
    else:
        first = tl.where(begin < end, (end - begin - 1) % TILE + 1, 0)
        seen = tile < first
        wait_for_last(PDL)
        q, m, l, acc = _begin(
            token_ptr, token_stride, keys_ptr, values_ptr, table_ptr, block_stride, slot, length, limit, window, writer, head,
            cos, sin, rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, key_scale, value_scale, scale, cap, eps, HEADS, KV_HEADS,
            PADDED_GROUP, PADDED_GROUP, WIDTH, BLOCK_SIZE, WINDOWED, NORM, D, PADDED_D, WIDE,
        )  # fmt: skip
        k, v, filled = _load_first(
            keys_ptr, values_ptr, table_ptr, block_stride, begin + tile, seen, head, BLOCK_SIZE, D, PADDED_D
        )
        # Zeros are filled in here: loads that did so would take more registers.
        k, v = tl.where(filled, k.to(WIDE), 0.0), tl.where(filled, widened(v, WIDE), 0.0)
        scores = capped(tl.dot(q, tl.trans(k), input_precision="ieee"), cap)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        scores = _inside(scores, begin + tile, own, length, window, WIDTH, WINDOWED)
        m, l, acc = visit(m, l, acc, scores, v, None)
        for start in tl.range(begin + first, end, TILE, num_stages=STAGES):
            positions = start + tile
            blocks = tl.load(table_ptr + positions // BLOCK_SIZE)
            at = _offsets(blocks, block_stride, positions, head, BLOCK_SIZE, D)
            keys, values = _load_tile(keys_ptr, values_ptr, at, D, PADDED_D)
            scores = capped(tl.dot(q, keys.to(WIDE), input_precision="ieee"), cap)
            scores = _inside(scores, positions, own, length, window, WIDTH, WINDOWED)
            m, l, acc = visit(m, l, acc, scores, widened(values, WIDE), None)

    rows = place * HEADS + head * GROUP + g
    if WIDTH > 1:
        rows = (place * WIDTH + own) * HEADS + head * GROUP + g % GROUP
    mask = (g < GROUP * WIDTH)[:, None] & (d < D)[None, :]
    acc = scaled(acc, value_scale)
    if SPLIT:
        rows = rows * tl.num_programs(2) + split
        tl.store(accs_ptr + rows[:, None] * D + d[None, :], acc, mask=mask)
        tl.store(ms_ptr + rows, m, mask=g < GROUP * WIDTH)
        tl.store(ls_ptr + rows, l, mask=g < GROUP * WIDTH)
    else:
        result = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + rows[:, None] * D + d[None, :], result, mask=mask)
