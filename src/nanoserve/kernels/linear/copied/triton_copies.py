"""Products of a few rows on Hopper whose weight the copy engine fetches, in Gluon, Triton's lower language.

What `triton.skinny_kernel` computes with a plain weight. Tiles of the weight come straight into shared memory, most of a multiprocessor's, and the first of them before
the kernel ahead has ended: a single thread asks for them, and no register holds them, so that the memory reads on from one product to the next.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from nanoserve.kernels.device import gates
from nanoserve.kernels.linear.low_rank import triton as low_rank

CHUNK = gl.constexpr(64)
"""Elements of a row that the copy engine swizzles: 128 bytes."""
PAIR = gl.constexpr(8)
"""Rows of the gate, and behind them as many of the up projection, by which a tile of both is made: a thread then holds the sums of either."""
_gated = gluon.jit(gates.gated.fn)
_wait_for_x = gluon.jit(low_rank.wait_for_x.fn)


@gluon.jit
def _fetch_weight(weight, full, w_s, stage, tile, k, BN: gl.constexpr, BK: gl.constexpr, GATE: gl.constexpr):
    """Let BK elements of the tile's rows of the weight come."""
    CHUNKS: gl.constexpr = BK // CHUNK
    for chunk in gl.static_range(CHUNKS):
        there = w_s.index(stage * CHUNKS + chunk)
        if GATE is not None:
            pairs = there._reinterpret(w_s.dtype, [BN // (2 * PAIR), 2, PAIR, CHUNK], weight.layout)  # noqa: SLF001 - Gluon's only view of one buffer in two layouts
            place = [tile * (BN // (2 * PAIR)), 0, 0, k + chunk * CHUNK]
            tma.async_copy_global_to_shared(weight, place, full, pairs)
        else:
            tma.async_copy_global_to_shared(weight, [tile * BN, k + chunk * CHUNK], full, there)


@gluon.jit
def _fetch_x(x, full, x_s, stage, k, BK: gl.constexpr):
    """Let BK elements of all rows of x come."""
    CHUNKS: gl.constexpr = BK // CHUNK
    for chunk in gl.static_range(CHUNKS):
        tma.async_copy_global_to_shared(x, [0, k + chunk * CHUNK], full, x_s.index(stage * CHUNKS + chunk))


@gluon.jit
def _add_columns(sums, columns, valid, bias_ptr, deltas_ptr, slots, N: gl.constexpr, OUT: gl.constexpr):
    """Sums of these columns of the product [N], of all rows, in another layout, plus the bias, and what adapters add to rows that have one."""
    sums = gl.convert_layout(sums, OUT)
    if bias_ptr is not None:
        sums += gl.load(bias_ptr + columns, mask=valid, other=0.0).to(gl.float32)[:, None]
    if deltas_ptr is not None:
        m = gl.arange(0, sums.shape[1], layout=slots.type.layout)
        deltas_ptrs = deltas_ptr + m[None, :] * N + columns[:, None]
        sums += gl.load(deltas_ptrs, mask=(slots > 0)[None, :] & valid[:, None], other=0.0).to(gl.float32)
    return sums


@gluon.jit(do_not_specialize=["M"])
def copied_kernel(
    x, weight, out_ptr, bias_ptr, ready_ptr, deltas_ptr, slots_ptr, M,
    N: gl.constexpr, K: gl.constexpr, GATE: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SPLITS: gl.constexpr,
    STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Program (n, s): out[s] = gate(x weight^T + delta + bias) of all M <= BM rows of x and BN of the weight, over slice s of SPLITS; see `triton.skinny_kernel`.

    `x` and `weight` describe boxes [BM, CHUNK] and [BN, CHUNK]; with a gate the weight is [N / (2 PAIR), 2, PAIR, K], by as many rows.
    """
    if PDL and ready_ptr is None:
        tl.extra.cuda.gdc_launch_dependents()
    CHUNKS: gl.constexpr = BK // CHUNK
    STEPS: gl.constexpr = K // BK
    AHEAD: gl.constexpr = min(STAGES - 1, STEPS // SPLITS)
    BYTES: gl.constexpr = (BN + BM) * BK * 2
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 16])

    tile, split = gl.program_id(0), gl.program_id(1)
    begin = STEPS * split // SPLITS
    steps = STEPS * (split + 1) // SPLITS - begin
    w_s = gl.allocate_shared_memory(weight.dtype, [STAGES * CHUNKS, BN, CHUNK], SHARED)
    x_s = gl.allocate_shared_memory(x.dtype, [STAGES * CHUNKS, BM, CHUNK], SHARED)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    for i in gl.static_range(AHEAD):
        mbarrier.expect(full.index(i), BYTES)
        _fetch_weight(weight, full.index(i), w_s, i, tile, (begin + i) * BK, BN, BK, GATE)
    _wait_for_x(ready_ptr, PDL)
    if ready_ptr is not None:
        # The wait for a kernel's end orders what it stored before what the copy engine reads; a word orders the loads of threads alone.
        fence: gl.constexpr = "fence.proxy.async.global; mov.u32 $0, 0;"
        gl.inline_asm_elementwise(fence, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)
    for i in gl.static_range(AHEAD):
        _fetch_x(x, full.index(i), x_s, i, (begin + i) * BK, BK)

    sums = gl.zeros([BN, BM], gl.float32, SUMS)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        for chunk in gl.static_range(CHUNKS):
            w, rows = w_s.index(stage * CHUNKS + chunk), x_s.index(stage * CHUNKS + chunk)
            sums = warpgroup_mma(w, rows.permute((1, 0)), sums, is_async=True)
        # All but this step's: the buffer of the step before it is free.
        sums = warpgroup_mma_wait(CHUNKS, [sums])
        if step + AHEAD < steps:
            there = (step + AHEAD) % STAGES
            k = (begin + step + AHEAD) * BK
            mbarrier.expect(full.index(there), BYTES)
            _fetch_weight(weight, full.index(there), w_s, there, tile, k, BN, BK, GATE)
            _fetch_x(x, full.index(there), x_s, there, k, BK)
    sums = warpgroup_mma_wait(0, [sums])

    OUT: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, gl.num_warps()], [0, 1])
    WIDTH: gl.constexpr = N // 2 if GATE is not None else N
    HEIGHT: gl.constexpr = BN // 2 if GATE is not None else BN
    columns = tile * HEIGHT + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, OUT))
    m = gl.arange(0, BM, layout=gl.SliceLayout(0, OUT))
    valid, slots = columns < WIDTH, m
    if deltas_ptr is not None:
        # Slices are added up: the first one has what adapters add.
        slots = gl.load(slots_ptr + m, mask=(m < M) & (split == 0), other=0)
        if PDL:
            tl.extra.cuda.gdc_wait()
    if GATE is not None:
        pairs = gl.permute(gl.reshape(sums, [BN // (2 * PAIR), 2, PAIR, BM]), (0, 2, 3, 1))
        gate, up = gl.split(pairs)
        gate, up = gl.reshape(gate, [HEIGHT, BM]), gl.reshape(up, [HEIGHT, BM])
        gate = _add_columns(gate, columns, valid, bias_ptr, deltas_ptr, slots, N, OUT)
        up = _add_columns(up, WIDTH + columns, valid, bias_ptr, deltas_ptr, slots, N, OUT)
        sums = _gated(gate, up, GATE)
    else:
        sums = _add_columns(sums, columns, valid, bias_ptr, deltas_ptr, slots, N, OUT)
    places = (split * M + m)[None, :] * WIDTH + columns[:, None]
    gl.store(out_ptr + places, sums.to(out_ptr.dtype.element_ty), mask=(m < M)[None, :] & valid[:, None])
