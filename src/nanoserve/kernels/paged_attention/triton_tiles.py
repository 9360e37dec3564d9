"""Attention of a tile of queries, causal or to both sides, over a paged cache, in the manner of FlashAttention-2 (Dao 2023).

Rows of the score matrix are (query, head) pairs, the heads being some that share a KV head. The keys are visited
KEYS at a time, from a multiple of KEYS on, in rising order; where nothing of a visit is visible to a row,
nothing of that row changes, not one bit. So a query's output does not depend on which queries share its tile.
That also asks for the same arithmetic whether a visit is masked or not, hence the explicit `fma`: the compiler would
fuse the multiplication and subtraction only where no mask stands between them.
"""

import triton
import triton.language as tl

from nanoserve.kernels.device.kept import scaled, wide_dtype
from nanoserve.kernels.device.softmax import LOG2_E, add_values, weigh
from nanoserve.kernels.device.softmax import begin as begin_softmax
from nanoserve.kernels.device.tiles import load_part, load_tile


@triton.jit
def visit_keys(
    state, query, positions, keys_ptr, values_ptr, table_ptr, block_stride, begin, end, first_visible, last_visible,
    scale, inner, MASKED: tl.constexpr, BOTH: tl.constexpr, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the keys at positions [begin, end) into the running softmax.

    State: m, l and acc of each row (see `device.softmax`).
    Slots outside of [first_visible, last_visible] are not even read: their weight is zero, but zero times NaN is NaN.
    Table entries are read one visit ahead. Read in the visit that needs them, they would share its place in the software
    pipeline with the keys and values, and half as many of those would be under way.
    """
    m, l, acc = state
    upcoming = begin + tl.arange(0, KEYS)
    upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE, mask=upcoming <= last_visible, other=0)
    for start in tl.range(begin, end, KEYS, num_stages=STAGES):
        places = start + tl.arange(0, KEYS)
        slot = upcoming_block.to(tl.int64) * block_stride + (places % BLOCK_SIZE) * HEAD_DIM
        upcoming = places + KEYS
        upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE, mask=upcoming <= last_visible, other=0)
        exists = (places >= first_visible) & (places <= last_visible)
        key = load_part(keys_ptr + slot, exists, HEAD_DIM, DIM, MASKED).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if inner is not None:
            scores = 1.0 - 2.0 / (tl.exp2(scores * inner) + 1.0)
        if MASKED:
            visible = places[None, :] <= (last_visible if BOTH else positions[:, None])
            if WINDOW > 0:
                if BOTH:
                    visible &= places[None, :] < positions[:, None] + WINDOW
                visible &= places[None, :] > positions[:, None] - WINDOW
            scores = tl.where(visible, scores, float("-inf"))
        m, l, p, alpha = weigh(m, l, scores, scale)
        value = load_part(values_ptr + slot, exists, HEAD_DIM, DIM, MASKED).to(query.dtype)
        acc = add_values(acc, alpha, p, value)
    return m, l, acc


@triton.jit(do_not_specialize=["tiles_ptr", "lengths_ptr", "table_stride"])
def prefill_attention_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, tiles_ptr, lengths_ptr, block_tables_ptr, sinks_ptr, scales_ptr,
    table_stride,
    block_stride, scale, inner,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, NEWEST: tl.constexpr, WIDTH: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    """Program (g, i): softmax(scale q K^T) V of heads [g * PACKED, (g + 1) * PACKED) of tile i.

    Query and acc [ROWS, DIM], a visit's keys and values [KEYS, DIM], scores [ROWS, KEYS].

    With NEWEST, `tiles_ptr` holds rows, and tile i is the newest token of its row, or one of WIDTH tokens from there on. With BOTH, tokens
    behind a query are visible as well, up to the end of its row, or less than WINDOW away. WINDOW of zero stands for none.
    `scale` includes the factor log2(e), as the softmax has base two. With `inner`, which is 2 log2(e) / c, what it
    multiplies is tanh(s / c) of each product s.
    """
    head = tl.program_id(0) * PACKED
    tile = tl.program_id(1)
    row, token, count, position = load_tile(tiles_ptr, lengths_ptr, tile, NEWEST, WIDTH)

    # Rows past the last query repeat its position, so that they see keys and stay finite; they are never stored.
    score_rows = tl.arange(0, ROWS)
    queries = score_rows // PACKED
    last = position + count - 1
    positions = tl.minimum(position + queries, last)
    elements = tl.arange(0, DIM)
    stored = (queries < count)[:, None] & (elements < HEAD_DIM)[None, :]
    places = (queries * NUM_HEADS + score_rows % PACKED)[:, None] * HEAD_DIM + elements[None, :]
    places += (token.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
    tile_query = tl.load(query_ptr + places, mask=stored, other=0.0)

    HEAD_STRIDE: tl.constexpr = BLOCK_SIZE * HEAD_DIM
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    key_scale, value_scale = None, None
    if scales_ptr is not None:
        key_scale, value_scale = tl.load(scales_ptr + kv_head), tl.load(scales_ptr + NUM_KV_HEADS + kv_head)
    WIDE: tl.constexpr = wide_dtype(query_ptr.dtype.element_ty, scales_ptr is not None)
    tile_query = scaled(tile_query, key_scale).to(WIDE)
    keys_ptr += kv_head * HEAD_STRIDE
    values_ptr += kv_head * HEAD_STRIDE
    table_ptr = block_tables_ptr + row * table_stride

    m, l, acc = begin_softmax(ROWS, DIM)
    if sinks_ptr is not None:
        m = tl.load(sinks_ptr + head + score_rows % PACKED).to(tl.float32) * LOG2_E
        l = tl.full([ROWS], 1.0, tl.float32)
    state = m, l, acc
    seen_by_all = (position + 1) // KEYS * KEYS  # nothing before is in any query's future
    last_visible = last
    if BOTH:
        length = tl.load(lengths_ptr + row)
        last_visible = length - 1
        if WINDOW > 0:
            seen_by_all = tl.minimum(length, position + WINDOW) // KEYS * KEYS
            last_visible = tl.minimum(last_visible, last + WINDOW - 1)
        else:
            seen_by_all = length // KEYS * KEYS
    begin = 0
    first_visible = 0
    if WINDOW > 0:
        first_visible = tl.maximum(position - WINDOW + 1, 0)
        # From here on every key is in the window of every query; before, some have left that of the last.
        begin = tl.maximum(last - WINDOW + KEYS, 0) // KEYS * KEYS
        state = visit_keys(
            state, tile_query, positions, keys_ptr, values_ptr, table_ptr, block_stride, first_visible // KEYS * KEYS, begin,
            first_visible, last_visible, scale, inner, True, BOTH, WINDOW, BLOCK_SIZE, HEAD_DIM, DIM, KEYS, STAGES,
        )  # fmt: skip
    state = visit_keys(
        state, tile_query, positions, keys_ptr, values_ptr, table_ptr, block_stride, begin, seen_by_all, first_visible,
        last_visible, scale, inner, False, BOTH, WINDOW, BLOCK_SIZE, HEAD_DIM, DIM, KEYS, STAGES,
    )  # fmt: skip
    m, l, acc = visit_keys(
        state, tile_query, positions, keys_ptr, values_ptr, table_ptr, block_stride, tl.maximum(begin, seen_by_all),
        last_visible + 1, first_visible, last_visible, scale, inner, True, BOTH, WINDOW, BLOCK_SIZE, HEAD_DIM, DIM, KEYS, STAGES,
    )  # fmt: skip
    acc = scaled(acc, value_scale)
    tl.store(out_ptr + places, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=stored)
