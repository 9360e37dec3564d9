"""Causal attention of tiles of queries on Hopper by warps of three roles, in the manner of FlashAttention-3 (Shah et al. 2024), in Gluon, Triton's lower language.

One warp has the copy engine fetch queries, keys and values into shared memory; two groups of four warps each multiply for one half of a tile's rows, so that one
computes its softmax while the other multiplies. Programs stay for many tiles: the next one's keys are fetched while the last is written.
Barriers in pairs, `full` and `empty`, say which buffer may be read and which filled; each changes its phase whenever all have arrived.

Rows, visits and sums are those of `triton_tiles.py`, which serves what this does not; the bits are not, as keys are visited in larger steps.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from nanoserve.kernels.device import softmax

_weigh = gluon.jit(softmax.weigh.fn)
CHUNK = gl.constexpr(64)
"""Elements of a head in a row of shared memory: the 128 bytes that the copy engine swizzles."""
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
SWIZZLED_HEADS = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=3))


@gluon.jit
def _tell(told_s, told_full, done, places, item):
    """Let the warps that multiply know six numbers of an item: its packed heads, first token, count, position, and keys from where to where. The last one has no heads."""
    numbers = places * 0
    for i in gl.static_range(6):
        numbers = gl.where(places == i, item[i], numbers)
    told_s.index(done % 2).store(numbers)
    mbarrier.arrive(told_full.index(done % 2))


@gluon.jit
def _hear(told_s, told_full, done, heard):
    """The tuple `heard` and behind it the numbers that `_tell` tells."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [gl.num_warps()], [0])
    mbarrier.wait(told_full.index(done % 2), done // 2 & 1)
    numbers, places = told_s.index(done % 2).load(LAYOUT), gl.arange(0, 8, layout=LAYOUT)
    for i in gl.static_range(6):
        heard = heard + (gl.sum(gl.where(places == i, numbers, 0), 0),)  # noqa: RUF005 - Triton's tuples know no star
    return heard


@gluon.jit
def _seen(row_ptr, position, last, WINDOW: gl.constexpr, EXPANDED: gl.constexpr):
    """The positions [first, end) that any query of a tile sees, which stand from `position` to `last`; of expanded keys, those of its row's span."""
    if EXPANDED:
        return gl.load(row_ptr + 1), gl.minimum(gl.load(row_ptr + 2), last + 1)
    return gl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else position * 0, last + 1


@gluon.jit
def _fetch(
    blocks, rotated, buffers, full, stage, table_ptr, start, last, head_row, block_rows, column, BLOCK_SIZE: gl.constexpr
):  # fmt: skip
    """Let keys or values of one KV head come to a buffer [KEYS, HEAD_DIM], and what all heads share of keys to one [KEYS, 64], if there is any.

    Behind the last visible block, those of block 0 come, whatever they are.
    """
    target, full = buffers[0].index(stage), full.index(stage)
    KEYS: gl.constexpr = target.shape[0]
    HEAD_DIM: gl.constexpr = target.shape[1]
    PAGE: gl.constexpr = min(BLOCK_SIZE, KEYS)
    mbarrier.expect(full, KEYS * (HEAD_DIM if rotated is None else HEAD_DIM + CHUNK) * 2)
    shape: gl.constexpr = [HEAD_DIM // CHUNK, KEYS, CHUNK]
    chunks = target._reinterpret(target.dtype, shape, SWIZZLED)  # noqa: SLF001 - Gluon's only view of one buffer in two layouts
    for page in gl.static_range(KEYS // PAGE):
        place = start + page * PAGE
        block = gl.load(table_ptr + place // BLOCK_SIZE, mask=place <= last, other=0)
        row = block * block_rows + head_row + place % BLOCK_SIZE
        for chunk in gl.static_range(HEAD_DIM // CHUNK):
            there = chunks.index(chunk).slice(page * PAGE, PAGE)
            tma.async_copy_global_to_shared(blocks, [row, column + chunk * CHUNK], full, there)
        if rotated is not None:
            tma.async_copy_global_to_shared(rotated, [row, 0], full, buffers[1].index(stage))


@gluon.jit
def _fetch_tiles(
    query, keys, rotated, values, tiles_ptr, tables_ptr, table_stride, items, counter_ptr, block_rows, buffers,
    NUM_HEADS: gl.constexpr, NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, WINDOW: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """The role of the warp that fetches."""
    q_s, k_s, v_s, told_s, told_full, q_full, q_empty, k_full, k_empty, v_full, v_empty = buffers
    ROWS: gl.constexpr = q_s[0].shape[0]
    STAGES: gl.constexpr = v_s.shape[0]
    KEYS: gl.constexpr = v_s.shape[1]
    HEAD_DIM: gl.constexpr = v_s.shape[2]
    EXPANDED: gl.constexpr = rotated is not None
    places = gl.arange(0, 8, layout=gl.BlockedLayout([8], [32], [1], [0]))
    done = 0
    visit = 0
    item = gl.program_id(0)
    while item < items:
        group, place = item % (NUM_HEADS // PACKED), tiles_ptr + item // (NUM_HEADS // PACKED) * 4
        row, token = gl.load(place), gl.load(place + 1)
        count, position = gl.load(place + 2), gl.load(place + 3)
        # Empty tiles see one key, as loops have a first visit.
        last = position + gl.maximum(count, 1) - 1
        table_ptr = tables_ptr + row.to(gl.int64) * table_stride
        first, end = _seen(table_ptr, position, last, WINDOW, EXPANDED)
        taken = item if counter_ptr is None else gl.atomic_add(counter_ptr, 1, sem="relaxed")
        item = taken + gl.num_programs(0)
        if not EXPANDED or first < end:
            _tell(told_s, told_full, done, places, (group, token, count, position, first, end))
            kv_head = group * PACKED // (NUM_HEADS // NUM_KV_HEADS)
            head_row, column = kv_head * BLOCK_SIZE, 0
            mbarrier.wait(q_empty, (done & 1) ^ 1)
            mbarrier.expect(q_full, ROWS * (HEAD_DIM + CHUNK * EXPANDED) * 2)
            shape: gl.constexpr = [HEAD_DIM // CHUNK, ROWS // PACKED, PACKED, CHUNK]
            chunks = q_s[0]._reinterpret(query.dtype, shape, SWIZZLED_HEADS)  # noqa: SLF001 - as above
            for chunk in gl.static_range(HEAD_DIM // CHUNK):
                corner = [token, group * PACKED, chunk * CHUNK]
                tma.async_copy_global_to_shared(query, corner, q_full, chunks.index(chunk))
            if EXPANDED:
                table_ptr, head_row, column = table_ptr + 3, -first, kv_head * 2 * HEAD_DIM
                chunk = q_s[1]._reinterpret(query.dtype, [ROWS, 1, CHUNK], SWIZZLED_HEADS)  # noqa: SLF001 - as above
                tma.async_copy_global_to_shared(query, [token, group, HEAD_DIM], q_full, chunk)
            for start in range(first // KEYS * KEYS, end, KEYS):
                stage = visit % STAGES
                phase = (visit // STAGES & 1) ^ 1
                where = stage, table_ptr, start, last, head_row, block_rows
                mbarrier.wait(k_empty.index(stage), phase)
                _fetch(keys, rotated, k_s, k_full, *where, column, BLOCK_SIZE)
                mbarrier.wait(v_empty.index(stage), phase)
                _fetch(values, None, (v_s, None), v_full, *where, column + HEAD_DIM * EXPANDED, BLOCK_SIZE)
                visit += 1
            done += 1
    _tell(told_s, told_full, done, places, (-1, 0, 0, 0, 0, 0))
    if counter_ptr is not None:  # noqa: SIM102 - what is not compiled and what is not executed
        if item == items + gl.num_programs(0) - 1:  # all programs have taken their last
            gl.store(counter_ptr, 0)


@gluon.jit
def _clear_unseen(value, start, first, last):
    """Make zero what no query sees of values at positions from `start` on: their weight is zero, but zero times NaN is NaN. Either half of the rows does so by itself."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    for part in gl.static_range(value.shape[0] // 16):
        begin = start + 16 * part
        if (begin + 15 > last) | (begin < first):
            slots = value.slice(16 * part, 16)
            places = begin + gl.arange(0, 16, layout=gl.SliceLayout(1, LAYOUT))
            kept = slots.load(LAYOUT)
            seen = (places >= first) & (places <= last)
            slots.store(gl.where(seen[:, None], kept, gl.zeros_like(kept)))
    fence_async_shared()


@gluon.jit
def _begin_scores(query, k_s, k_full, visit, SCORES: gl.constexpr):
    """Start the products of a visit's keys, once they are there."""
    STAGES: gl.constexpr = k_s[0].shape[0]
    SHAPE: gl.constexpr = [query[0].shape[0], k_s[0].shape[1]]
    mbarrier.wait(k_full.index(visit % STAGES), visit // STAGES & 1)
    keys, nothing = k_s[0].index(visit % STAGES).permute((1, 0)), gl.zeros(SHAPE, gl.float32, SCORES)
    scores = warpgroup_mma(query[0], keys, nothing, use_acc=False, is_async=True)
    if k_s[1] is not None:
        scores = warpgroup_mma(query[1], k_s[1].index(visit % STAGES).permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def _masked(scores, start, positions, inner, MASKED: gl.constexpr, WINDOW: gl.constexpr):
    """Scores with the cap and the masks of `triton_tiles.visit_keys`."""
    if inner is not None:
        scores = 1.0 - 2.0 / (gl.exp2(scores * inner) + 1.0)
    if MASKED:
        places = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, scores.type.layout))
        visible = places[None, :] <= positions[:, None]
        if WINDOW > 0:
            visible = visible & (places[None, :] > positions[:, None] - WINDOW)
        scores = gl.where(visible, scores, float("-inf"))
    return scores


@gluon.jit
def _visit_keys(
    state, query, buffers, positions, first, last, scale, inner, begin, end,
    MASKED: gl.constexpr, WINDOW: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """Fold the keys at positions [begin, end) into the running softmax.

    State: m and l of each row, p, the weights of the visit before, whose values have not been added, acc, and the number of the visit.
    """
    m, l, p, acc, visit = state
    _, k_s, v_s, _, _, _, _, k_full, k_empty, v_full, v_empty = buffers
    STAGES: gl.constexpr = v_s.shape[0]
    KEYS: gl.constexpr = v_s.shape[1]
    for start in range(begin, end, KEYS):
        scores = _begin_scores(query, k_s, k_full, visit, SCORES)
        old = (visit - 1) % STAGES
        mbarrier.wait(v_full.index(old), (visit - 1) // STAGES & 1)
        if MASKED:
            _clear_unseen(v_s.index(old), start - KEYS, first, last)
        acc = warpgroup_mma(p, v_s.index(old), acc, is_async=True)
        scores = warpgroup_mma_wait(1, [scores])
        mbarrier.arrive(k_empty.index(visit % STAGES))
        m, l, weights, alpha = _weigh(m, l, _masked(scores, start, positions, inner, MASKED, WINDOW), scale)
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(v_empty.index(old))
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(weights.to(v_s.dtype), p.type.layout)
        visit += 1
    return m, l, p, acc, visit


@gluon.jit
def _attend_tiles(
    written, scale, inner, buffers, WHICH: gl.constexpr, NUM_HEADS: gl.constexpr, WINDOW: gl.constexpr, PACKED: gl.constexpr
):  # fmt: skip
    """The role of the warps that multiply half WHICH of each tile's rows."""
    out_ptr, accs_ptr, ms_ptr, ls_ptr = written
    q_s, k_s, v_s, told_s, told_full, q_full, q_empty, k_full, k_empty, v_full, v_empty = buffers
    HALF: gl.constexpr = q_s[0].shape[0] // 2
    STAGES: gl.constexpr = v_s.shape[0]
    KEYS: gl.constexpr = v_s.shape[1]
    HEAD_DIM: gl.constexpr = v_s.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, HEAD_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    SUM_ROW: gl.constexpr = gl.SliceLayout(1, SUMS)
    EXPANDED: gl.constexpr = accs_ptr is not None
    query = q_s[0].slice(WHICH * HALF, HALF), None
    if EXPANDED:
        query = query[0], q_s[1].slice(WHICH * HALF, HALF)
    done = 0
    visit = 0
    group, token, count, position, first, end = _hear(told_s, told_full, done, ())
    while group >= 0:
        last = position + gl.maximum(count, 1) - 1
        if not EXPANDED:
            first, end = _seen(None, position, last, WINDOW, EXPANDED)
        # Rows past the last query repeat its position, as in `triton_tiles.py`.
        positions = gl.minimum(position + (WHICH * HALF + gl.arange(0, HALF, layout=ROW)) // PACKED, last)
        begin = first // KEYS * KEYS
        seen_by_all = (position + 1) // KEYS * KEYS
        m, l = gl.full([HALF], -1.0e30, gl.float32, ROW), gl.zeros([HALF], gl.float32, ROW)
        if EXPANDED:
            seen_by_all = gl.minimum(seen_by_all, end)
        mbarrier.wait(q_full, done & 1)
        scores = _begin_scores(query, k_s, k_full, visit, SCORES)
        scores = warpgroup_mma_wait(0, [scores])
        mbarrier.arrive(k_empty.index(visit % STAGES))
        m, l, p, _ = _weigh(m, l, _masked(scores, begin, positions, inner, True, WINDOW), scale)
        acc = gl.zeros([HALF, HEAD_DIM], gl.float32, SUMS)
        state = m, l, gl.convert_layout(p.to(v_s.dtype), WEIGHTS), acc, visit + 1
        begin += KEYS
        visited = query, buffers, positions, first, last, scale, inner
        if WINDOW > 0:
            # From here on every key is in the window of every query. One visit at least, which clears the values of the first.
            inside = gl.maximum(last - WINDOW + KEYS, 0) // KEYS * KEYS
            inside = gl.minimum(gl.maximum(inside, begin + 1), last + 1)
            state = _visit_keys(state, *visited, begin, inside, True, WINDOW, SCORES)
            begin = gl.maximum(begin, (inside + KEYS - 1) // KEYS * KEYS)
        state = _visit_keys(state, *visited, begin, seen_by_all, False, WINDOW, SCORES)
        begin = gl.maximum(begin, seen_by_all)
        m, l, p, acc, visit = _visit_keys(state, *visited, begin, end, True, WINDOW, SCORES)
        mbarrier.arrive(q_empty)
        old = (visit - 1) % STAGES
        mbarrier.wait(v_full.index(old), (visit - 1) // STAGES & 1)
        _clear_unseen(v_s.index(old), (end - 1) // KEYS * KEYS, first, last)
        acc = warpgroup_mma(p, v_s.index(old), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(v_empty.index(old))
        rows = WHICH * HALF + gl.arange(0, HALF, layout=SUM_ROW)
        elements = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, SUMS))
        results = rows // PACKED * NUM_HEADS + rows % PACKED
        places, exists = results[:, None] * HEAD_DIM + elements[None, :], rows // PACKED < count
        tile, l = token.to(gl.int64) * NUM_HEADS + group * PACKED, gl.convert_layout(l, SUM_ROW)
        if EXPANDED:
            m = gl.convert_layout(m, SUM_ROW)
            if first > 0:
                top = gl.load(ms_ptr + tile + results, mask=exists, other=-1.0e30)
                newest = gl.maximum(m, top)
                alpha, beta = gl.exp2(m - newest), gl.exp2(top - newest)
                l = l * alpha + gl.load(ls_ptr + tile + results, mask=exists, other=0.0) * beta
                kept = gl.load(accs_ptr + tile * HEAD_DIM + places, mask=exists[:, None], other=0.0)
                acc = acc * alpha[:, None] + kept * beta[:, None]
                m = newest
            if end <= last:
                gl.store(ms_ptr + tile + results, m, mask=exists)
                gl.store(ls_ptr + tile + results, l, mask=exists)
                gl.store(accs_ptr + tile * HEAD_DIM + places, acc, mask=exists[:, None])
        if not EXPANDED or end > last:
            out = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
            gl.store(out_ptr + tile * HEAD_DIM + places, out, mask=exists[:, None])
        done += 1
        group, token, count, position, first, end = _hear(told_s, told_full, done, ())


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory, each for so many ARRIVALS."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit(do_not_specialize=["tiles_ptr", "table_stride", "items", "counter_ptr"])
def prefill_attention_by_roles_kernel(
    query, keys, rotated, values, out_ptr, accs_ptr, ms_ptr, ls_ptr, tiles_ptr, tables_ptr, table_stride, block_rows, items, counter_ptr, scale, inner,
    NUM_HEADS: gl.constexpr, NUM_KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr, WINDOW: gl.constexpr,
    PACKED: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Program i of P: softmax(scale q K^T) V of items i, i + P, ...: packed heads item % G of tile item // G, with G = NUM_HEADS / PACKED.

    `query` describes [T, NUM_HEADS, HEAD_DIM] by boxes [ROWS / PACKED, PACKED, 64]; `keys` and `values` the cache as rows of HEAD_DIM elements,
    `block_rows` from one block to the next, by boxes [min(BLOCK_SIZE, KEYS), 64]. `scale` and `inner` are those of `prefill_attention_kernel`.

    With `rotated`, keys and values are those of `attend_expanded`, and queries have 64 elements more. Boxes have KEYS rows: `keys` and `values` describe
    each token's heads, from a key or a value on, and `rotated` the 64 elements of its key that all heads share. `tables_ptr` holds the spans, as tables
    of one endless block; sums are kept in `accs_ptr`, `ms_ptr` and `ls_ptr`.
    """
    q_s = gl.allocate_shared_memory(query.dtype, [ROWS, HEAD_DIM], SWIZZLED), None
    k_s = gl.allocate_shared_memory(query.dtype, [STAGES, KEYS, HEAD_DIM], SWIZZLED), None
    if rotated is not None:
        q_s = q_s[0], gl.allocate_shared_memory(query.dtype, [ROWS, CHUNK], SWIZZLED)
        k_s = k_s[0], gl.allocate_shared_memory(query.dtype, [STAGES, KEYS, CHUNK], SWIZZLED)
    v_s = gl.allocate_shared_memory(query.dtype, [STAGES, KEYS, HEAD_DIM], SWIZZLED)
    told_s = gl.allocate_shared_memory(gl.int32, [2, 8], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    told_full = barriers(2, 1)
    q_full, q_empty = barriers(1, 1).index(0), barriers(1, 2).index(0)
    k_full, k_empty = barriers(STAGES, 1), barriers(STAGES, 2)
    v_full, v_empty = barriers(STAGES, 1), barriers(STAGES, 2)
    fence_async_shared()
    buffers = q_s, k_s, v_s, told_s, told_full, q_full, q_empty, k_full, k_empty, v_full, v_empty
    written = out_ptr, accs_ptr, ms_ptr, ls_ptr
    gl.warp_specialize(
        [
            (_attend_tiles, (written, scale, inner, buffers, 0, NUM_HEADS, WINDOW, PACKED)),
            (_attend_tiles, (written, scale, inner, buffers, 1, NUM_HEADS, WINDOW, PACKED)),
            (_fetch_tiles, (
                query, keys, rotated, keys if values is None else values, tiles_ptr, tables_ptr, table_stride, items, counter_ptr, block_rows, buffers,
                NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE, WINDOW, PACKED,
            )),
        ],
        [4, 1],
        [232, 32],
    )  # fmt: skip
