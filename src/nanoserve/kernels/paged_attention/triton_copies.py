"""Decode attention on Hopper whose keys and values are fetched by the copy engine, in Gluon, Triton's lower language.

What `triton.py` computes, for rows of any length, in fewer instructions: the copy engine takes blocks of the cache by their numbers, where threads
would make an address for every 16 bytes, and keys stand in the rows of each matrix product, so that a KV head's queries fill columns, of which eight
are enough, and not rows, of which it takes sixteen. Programs are single warps with several visits' keys on their way; nothing is exchanged between warps.

Values in 8-bit floats are turned and widened by two instructions for four of them: a register of the matrix product holds neighbours of a column,
so each 16-bit word of a row goes there as it is, and the two numbers in it belong to two products, of even and odd elements.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from nanoserve.kernels.device import kept, softmax
from nanoserve.kernels.paged_attention import triton as by_threads

LOG2_E = softmax.LOG2_E
NOTHING = softmax.NOTHING
_weigh = gluon.jit(softmax.weigh.fn)
_capped = gluon.jit(by_threads.capped.fn)
_narrowed = gluon.jit(kept.narrowed.fn)


@gluon.jit
def _block_of(table_ptr, page, first, end, PAGE: gl.constexpr, BLOCK_SIZE: gl.constexpr):
    """The block in which PAGE positions from `page` on lie; 0 where none of them is in [first, end)."""
    return gl.load(table_ptr + page // BLOCK_SIZE, mask=(page < end) & (page + PAGE > first), other=0)


@gluon.jit
def _blocks_of(table_ptr, start, first, end, KEYS: gl.constexpr, BLOCK_SIZE: gl.constexpr):
    """The blocks of a visit's pages, of which it has one, two or four."""
    PAGE: gl.constexpr = min(BLOCK_SIZE, KEYS)
    a = _block_of(table_ptr, start, first, end, PAGE, BLOCK_SIZE)
    b, c, d = a, a, a
    if KEYS // PAGE > 1:
        b = _block_of(table_ptr, start + PAGE, first, end, PAGE, BLOCK_SIZE)
    if KEYS // PAGE > 2:
        c = _block_of(table_ptr, start + 2 * PAGE, first, end, PAGE, BLOCK_SIZE)
        d = _block_of(table_ptr, start + 3 * PAGE, first, end, PAGE, BLOCK_SIZE)
    return a, b, c, d


@gluon.jit
def _fetch(
    keys, values, blocks, start, head_row, block_rows, full, k_s, v_s,
    KEYS: gl.constexpr, D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Let a visit's keys and values come to `k_s` and `v_s`, [KEYS, D], whatever its unseen slots hold."""
    PAGE: gl.constexpr = min(BLOCK_SIZE, KEYS)
    CHUNK: gl.constexpr = keys.block_type.shape[1]
    shape: gl.constexpr = [D // CHUNK, KEYS, CHUNK]
    k_chunks = k_s._reinterpret(k_s.dtype, shape, keys.layout)  # noqa: SLF001 - Gluon's only view of one buffer in two layouts
    v_chunks = v_s._reinterpret(v_s.dtype, shape, keys.layout)  # noqa: SLF001 - as above
    mbarrier.expect(full, 2 * KEYS * D * (keys.dtype.primitive_bitwidth // 8))
    for page in gl.static_range(KEYS // PAGE):
        row = blocks[page] * block_rows + head_row + (start + page * PAGE) % BLOCK_SIZE
        for chunk in gl.static_range(D // CHUNK):
            place = [row, chunk * CHUNK]
            tma.async_copy_global_to_shared(keys, place, full, k_chunks.index(chunk).slice(page * PAGE, PAGE))
            tma.async_copy_global_to_shared(
                values, place, full, v_chunks.index(chunk).slice(page * PAGE, PAGE)
            )


@gluon.jit
def _begin_fetching(
    where, pool, KEYS: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr, BLOCK_SIZE: gl.constexpr
):
    """Let the first visits' keys and values come; the blocks of the next one."""
    keys, values, full, k_s, v_s = pool
    table_ptr, head_row, block_rows, begin, end, visits, first, _ = where
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    for i in gl.static_range(STAGES - 1):
        if i < visits:
            start = begin + i * KEYS
            blocks = _blocks_of(table_ptr, start, first, end, KEYS, BLOCK_SIZE)
            target = full.index(i), k_s.index(i), v_s.index(i)
            _fetch(keys, values, blocks, start, head_row, block_rows, *target, KEYS, D, BLOCK_SIZE)
    return _blocks_of(table_ptr, begin + (STAGES - 1) * KEYS, first, end, KEYS, BLOCK_SIZE)


@gluon.jit
def _widened(words):
    """The 8-bit floats in the low bytes of 16-bit words, and those in the high bytes, in float16."""
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b32 sorted;
        .reg .b16 low, high;
        prmt.b32 sorted, $2, 0, 0x3120;
        mov.b32 {low, high}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }
        """,
        "=r,=r,r",
        [words],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _rotation(rotations_ptr, positions, D: gl.constexpr, LAYOUT: gl.constexpr):
    """Cosines and sines of positions [N], the sines negated in the first half, [D, N]."""
    d = gl.arange(0, D, layout=gl.SliceLayout(1, LAYOUT))
    angle_ptr = rotations_ptr + positions[None, :] * D + (d % (D // 2))[:, None]
    cos, sin = gl.load(angle_ptr), gl.load(angle_ptr + D // 2)
    return cos, gl.where((d < D // 2)[:, None], -sin, sin)


@gluon.jit
def _normed_and_rotated(heads_ptr, shown, norm_ptr, rotation, eps, D: gl.constexpr, LAYOUT: gl.constexpr):
    """Heads at pointers [N], as `triton.py` makes them: [D, N] in float32, zero if not shown."""
    d = gl.arange(0, D, layout=gl.SliceLayout(1, LAYOUT))
    swapped = (d + D // 2) % D
    x = gl.load(heads_ptr[None, :] + d[:, None], mask=shown[None, :], other=0.0).to(gl.float32)
    y = gl.load(heads_ptr[None, :] + swapped[:, None], mask=shown[None, :], other=0.0).to(gl.float32)
    if norm_ptr is not None:
        inverse = gl.rsqrt(gl.sum(x * x, 0) / D + eps)[None, :]
        x *= inverse * gl.load(norm_ptr + d).to(gl.float32)[:, None]
        y *= inverse * gl.load(norm_ptr + swapped).to(gl.float32)[:, None]
    cos, sin = rotation
    return x * cos + y * sin


@gluon.jit
def _visit_keys(
    state, query, positions, where, pool, begin_visit, end_visit, cap,
    MASKED: gl.constexpr, WINDOWED: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """Fold the visits [begin_visit, end_visit) into the running softmax, and let later ones' keys come.

    State: m and l of each query, acc of all elements or of the even ones, acc of the odd ones, and the blocks of the visit to fetch next.
    """
    m, l, acc, odd, blocks = state
    keys, values, full, k_s, v_s = pool
    table_ptr, head_row, block_rows, begin, end, visits, first, window = where
    NARROW: gl.constexpr = keys.dtype.primitive_bitwidth == 8
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SCORES, 4 if NARROW else 2)
    V_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    WORDS: gl.constexpr = gl.NVMMASharedLayout(keys.layout.swizzle_byte_width, 16, rank=2)
    for visit in range(begin_visit, end_visit):
        start = begin + visit * KEYS
        ahead = visit + STAGES - 1
        if ahead < visits:
            # Into the buffer that the visit before this one has read.
            there = ahead % STAGES
            target = full.index(there), k_s.index(there), v_s.index(there)
            _fetch(
                keys, values, blocks, begin + ahead * KEYS, head_row, block_rows, *target, KEYS, D, BLOCK_SIZE
            )
        blocks = _blocks_of(table_ptr, start + STAGES * KEYS, first, end, KEYS, BLOCK_SIZE)
        stage = visit % STAGES
        mbarrier.wait(full.index(stage), visit // STAGES & 1)
        k = k_s.index(stage).load(K_LAYOUT).to(query.dtype)
        scores = mma_v2(k, query, gl.zeros([KEYS, query.shape[1]], gl.float32, SCORES))
        value = v_s.index(stage)
        if NARROW:
            value = value._reinterpret(gl.int16, [KEYS, D // 2], WORDS)  # noqa: SLF001 - as above
        v = value.permute((1, 0)).load(V_LAYOUT)
        scores = _capped(scores, cap)
        if MASKED:
            at = start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, SCORES))
            seen = (at < end)[:, None]
            if WINDOWED:
                seen = seen & (at[:, None] + window > positions[None, :])
            scores = gl.where(seen, scores, float("-inf"))
            # A weight of zero is not enough where the value is NaN.
            at = start + gl.arange(0, KEYS, layout=gl.SliceLayout(0, V_LAYOUT))
            v = gl.where(((at >= first) & (at < end))[None, :], v, gl.zeros_like(v))
        m, l, p, alpha = _weigh(m, l, scores, None, 0)
        p = gl.convert_layout(p.to(query.dtype), gl.DotOperandLayout(1, SCORES, 2))
        if NARROW:
            v, v_odd = _widened(v)
            odd = mma_v2(v_odd, p, odd * alpha[None, :])
        acc = mma_v2(v, p, acc * alpha[None, :])
    return m, l, acc, odd, blocks


@gluon.jit
def _places_of_new(
    rotations_ptr, table_ptr, length, limit, is_mine, head, block_rows,
    D: gl.constexpr, BLOCK_SIZE: gl.constexpr, WIDTH: gl.constexpr, MADE: gl.constexpr,
):  # fmt: skip
    """The rotation of each new token, and the row of the cache that gets its key and its value: -1 from the limit on, and where they are not mine."""
    one = gl.arange(0, 1, layout=gl.SliceLayout(0, MADE))
    rotations, rows = (), ()
    for new in gl.static_range(WIDTH):
        position = length - 1 + new
        is_kept = is_mine & (position + 1 < limit)
        block = gl.load(table_ptr + position // BLOCK_SIZE, mask=is_kept, other=0)
        row = block * block_rows + head * BLOCK_SIZE + position % BLOCK_SIZE
        rotation = _rotation(rotations_ptr, position + one, D, MADE)
        rotations = rotations + (rotation,)  # type: ignore[assignment]  # noqa: RUF005 - Triton's tuples know no star
        rows = rows + (gl.where(is_kept, row, -1),)  # type: ignore[assignment]  # noqa: RUF005 - as above
    return rotations, rows


@gluon.jit
def _begin_new(
    q, own, places, keys_ptr, values_ptr, tokens_ptr, token_stride, is_mine, head, k_norm_ptr, key_scale, value_scale, window, cap, eps,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, WIDTH: gl.constexpr, WINDOWED: gl.constexpr, MADE: gl.constexpr,
):  # fmt: skip
    """Begin the softmax with the new tokens, and write them to their places: m and l, and of each token the scores of all queries and the value.

    Only one split's are mine; the others' scores are -inf.
    """
    NUMBERS: gl.constexpr = keys_ptr.dtype.element_ty
    d = gl.arange(0, D, layout=gl.SliceLayout(1, MADE))
    one = gl.arange(0, 1, layout=gl.SliceLayout(0, MADE))
    m = gl.full([q.shape[1]], NOTHING, gl.float32, gl.SliceLayout(0, MADE))
    l = gl.zeros([q.shape[1]], gl.float32, gl.SliceLayout(0, MADE))
    rotations, rows = places
    scores, values = (), ()
    for new in gl.static_range(WIDTH):
        token_ptr = tokens_ptr + new * token_stride
        key_ptr = token_ptr + (HEADS + head + one) * D
        key = _normed_and_rotated(key_ptr, (one == 0) & is_mine, k_norm_ptr, rotations[new], eps, D, MADE)
        key = gl.convert_layout(gl.reshape(key, [D]), gl.SliceLayout(1, MADE)).to(tokens_ptr.dtype.element_ty)
        value = gl.load(token_ptr + (HEADS + KV_HEADS + head) * D + d, mask=(d < D) & is_mine, other=0.0)
        key, value = _narrowed(key, key_scale, NUMBERS), _narrowed(value, value_scale, NUMBERS)
        slot = rows[new].to(gl.int64) * D + d
        gl.store(keys_ptr + slot, key, mask=slot >= 0)
        gl.store(values_ptr + slot, value, mask=slot >= 0)
        score = _capped(gl.sum(q.to(gl.float32) * key.to(gl.float32)[:, None], 0), cap)
        seen = (new <= own) & is_mine
        if WINDOWED:
            seen = seen & (new + window > own)
        score = gl.where(seen, score, float("-inf"))
        m, l, _, _ = _weigh(m, l, score[None, :], None, 0)
        scores = scores + (score,)  # type: ignore[assignment]  # noqa: RUF005 - as above
        values = values + (value.to(gl.float32),)  # type: ignore[assignment]  # noqa: RUF005 - as above
    return m, l, scores, values


@gluon.jit(do_not_specialize=["table_stride", "window"])
def attend_to_rows_by_copies(
    qkv_ptr, keys, values, keys_ptr, values_ptr, out_ptr, accs_ptr, ms_ptr, ls_ptr, batch_rows_ptr, lengths_ptr, limits_ptr,
    tables_ptr, rotations_ptr, q_norm_ptr, k_norm_ptr, sinks_ptr, scales_ptr, token_stride, table_stride, block_rows, window, scale,
    cap, eps,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, COLUMNS: gl.constexpr, D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr, WIDTH: gl.constexpr, WINDOWED: gl.constexpr, SPLIT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Program (h, b, s): see `triton.attend_to_rows`. Its queries are the COLUMNS, those of token after token.

    `keys` and `values` describe the cache as rows of D elements, `block_rows` from one block to the next, by boxes [min(BLOCK_SIZE, KEYS), 128 bytes or
    less]. The first old keys are on their way before the query is known.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    GROUP: gl.constexpr = HEADS // KV_HEADS
    NARROW: gl.constexpr = scales_ptr is not None
    WIDE: gl.constexpr = gl.float16 if NARROW else qkv_ptr.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(
        keys.layout.swizzle_byte_width, keys.dtype.primitive_bitwidth, rank=2
    )
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [gl.num_warps(), 1], [16, 8])
    MADE: gl.constexpr = gl.BlockedLayout([8, 1], [D // 8, 256 // D], [1, gl.num_warps()], [0, 1])
    COLUMN: gl.constexpr = gl.SliceLayout(0, SCORES)
    MADE_COLUMN: gl.constexpr = gl.SliceLayout(0, MADE)

    head, place, split = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    row = gl.load(batch_rows_ptr + place)
    length = gl.load(lengths_ptr + row)
    table_ptr = tables_ptr + row.to(gl.int64) * table_stride
    first = gl.maximum(length - window, 0) if WINDOWED else 0
    base = first // KEYS * KEYS
    share = gl.cdiv(gl.cdiv(length - 1 - base, KEYS), gl.num_programs(2)) * KEYS
    begin = base + split * share
    end = gl.minimum(begin + share, length - 1)
    visits = gl.maximum(gl.cdiv(end - begin, KEYS), 0)
    head_row = head * BLOCK_SIZE

    k_s = gl.allocate_shared_memory(keys.dtype, [STAGES, KEYS, D], SHARED)
    v_s = gl.allocate_shared_memory(keys.dtype, [STAGES, KEYS, D], SHARED)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    where = table_ptr, head_row, block_rows, begin, end, visits, first, window
    pool = keys, values, full, k_s, v_s
    blocks = _begin_fetching(where, pool, KEYS, STAGES, D, BLOCK_SIZE)

    g = gl.arange(0, COLUMNS, layout=MADE_COLUMN)
    own = gl.minimum(g // GROUP, WIDTH - 1) if WIDTH > 1 else g * 0
    heads, shown, is_mine = head * GROUP + g % GROUP, g < GROUP * WIDTH, split == 0
    rotation = _rotation(rotations_ptr, length - 1 + own, D, MADE)
    limit = length + WIDTH if limits_ptr is None else gl.load(limits_ptr + row)
    places = _places_of_new(
        rotations_ptr, table_ptr, length, limit, is_mine, head, block_rows, D, BLOCK_SIZE, WIDTH, MADE
    )
    key_scale, value_scale = None, None
    if NARROW:
        key_scale, value_scale = gl.load(scales_ptr + head), gl.load(scales_ptr + KV_HEADS + head)

    if PDL:
        tl.extra.cuda.gdc_wait()
    tokens_ptr = qkv_ptr + place * WIDTH * token_stride
    heads_ptr = tokens_ptr + own * token_stride + heads * D
    q = _normed_and_rotated(heads_ptr, shown, q_norm_ptr, rotation, eps, D, MADE) * (scale * LOG2_E)
    if NARROW:
        q *= key_scale
    q = q.to(WIDE)
    m, l, scores, news = _begin_new(
        q, own, places, keys_ptr, values_ptr, tokens_ptr, token_stride, is_mine, head, k_norm_ptr, key_scale, value_scale, window, cap,
        eps, HEADS, KV_HEADS, D, WIDTH, WINDOWED, MADE,
    )  # fmt: skip
    if sinks_ptr is not None:
        sinks = gl.load(sinks_ptr + heads, mask=shown, other=0.0).to(gl.float32) * LOG2_E
        m, l, _, _ = _weigh(m, l, gl.where(is_mine, sinks, float("-inf"))[None, :], None, 0)

    acc = gl.zeros([D // 2 if NARROW else D, COLUMNS], gl.float32, SCORES)
    state = gl.convert_layout(m, COLUMN), gl.convert_layout(l, COLUMN), acc, acc, blocks
    query = gl.convert_layout(q, gl.DotOperandLayout(1, SCORES, 4 if NARROW else 2))
    positions = gl.convert_layout(length - 1 + own, COLUMN)
    what = query, positions, where, pool
    inside = gl.maximum(end - begin, 0) // KEYS
    edge = 0
    if WINDOWED:
        # Visits of keys that not every new token's window holds.
        edge = gl.minimum(gl.maximum(gl.cdiv(first + WIDTH - 1 - begin, KEYS), 0), visits)
        inside = gl.maximum(inside, edge)
        state = _visit_keys(state, *what, 0, edge, cap, True, WINDOWED, KEYS, STAGES, D, BLOCK_SIZE, SCORES)
    state = _visit_keys(state, *what, edge, inside, cap, False, WINDOWED, KEYS, STAGES, D, BLOCK_SIZE, SCORES)
    m, l, acc, odd, blocks = _visit_keys(
        state, *what, inside, visits, cap, True, WINDOWED, KEYS, STAGES, D, BLOCK_SIZE, SCORES
    )

    if NARROW:
        acc = gl.reshape(gl.permute(gl.join(acc, odd), (0, 2, 1)), [D, COLUMNS])
    acc = gl.convert_layout(acc, MADE)
    m, l = gl.convert_layout(m, MADE_COLUMN), gl.convert_layout(l, MADE_COLUMN)
    for new in gl.static_range(WIDTH):
        acc += gl.exp2(scores[new] - m)[None, :] * news[new][:, None]
    if NARROW:
        acc *= value_scale
    rows = (place * WIDTH + own) * HEADS + heads
    d = gl.arange(0, D, layout=gl.SliceLayout(1, MADE))
    mask = (d < D)[:, None] & shown[None, :]
    if SPLIT:
        rows = rows * gl.num_programs(2) + split
        gl.store(accs_ptr + rows[None, :] * D + d[:, None], acc, mask=mask)
        gl.store(ms_ptr + rows, m, mask=shown)
        gl.store(ls_ptr + rows, l, mask=shown)
    else:
        result = (acc / l[None, :]).to(out_ptr.dtype.element_ty)
        gl.store(out_ptr + rows[None, :] * D + d[:, None], result, mask=mask)
