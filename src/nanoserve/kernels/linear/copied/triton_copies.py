"""Products of a few rows on Hopper whose weight the copy engine fetches, in Gluon, Triton's lower language.

What `triton.skinny_kernel` computes with a plain weight or one of 8-bit floats, and `triton_tiles.invariant_kernel` with rows of 8-bit floats. Tiles of the weight come straight into shared memory, most of a multiprocessor's, and the first of them before
the kernel ahead has ended: a single thread asks for them, and no register holds them, so that the memory reads on from one product to the next.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from nanoserve.kernels.device import gates
from nanoserve.kernels.linear.low_rank import triton as low_rank

LINE = gl.constexpr(128)
"""Bytes of a row that the copy engine swizzles: a chunk."""
PAIR = gl.constexpr(8)
"""Rows of the gate, and behind them as many of the up projection, by which a tile of both is made: a thread then holds the sums of either."""
PROMOTED = gl.constexpr(1024)
"""Products of 8-bit floats whose sums tensor cores add up, in fewer bits than float32 has, before they are added in that."""
_gated = gluon.jit(gates.gated.fn)
_wait_for_x = gluon.jit(low_rank.wait_for_x.fn)


@gluon.jit
def _fetch(matrix, full, buffers, stage, tile, k, BK: gl.constexpr, GATE: gl.constexpr):
    """Let BK elements of a tile of rows of the weight, or of all of x, come."""
    BN: gl.constexpr = buffers.shape[1]
    CHUNK: gl.constexpr = buffers.shape[2]
    CHUNKS: gl.constexpr = BK // CHUNK
    for chunk in gl.static_range(CHUNKS):
        there = buffers.index(stage * CHUNKS + chunk)
        if GATE is not None:
            pairs = there._reinterpret(buffers.dtype, [BN // (2 * PAIR), 2, PAIR, CHUNK], matrix.layout)  # noqa: SLF001 - Gluon's only view of one buffer in two layouts
            place = [tile * (BN // (2 * PAIR)), 0, 0, k + chunk * CHUNK]
            tma.async_copy_global_to_shared(matrix, place, full, pairs)
        else:
            tma.async_copy_global_to_shared(matrix, [tile * BN, k + chunk * CHUNK], full, there)


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
def copied_kernel(  # noqa: PLR0912 - constants choose
    x, weight, x_scale_ptr, scale_ptr, out_ptr, bias_ptr, residual_ptr, ready_ptr, deltas_ptr, slots_ptr, M,
    N: gl.constexpr, K: gl.constexpr, GATE: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SPLITS: gl.constexpr,
    SCALES: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Program (n, s): out[s] = residual + gate(x weight^T + delta + bias) of all M <= BM rows of x and BN of the weight, over slice s of SPLITS; see `triton.skinny_kernel`.

    `x` and `weight` describe boxes of BM and BN rows, a chunk wide; with a gate the weight is [N / (2 PAIR), 2, PAIR, K], by as many rows. Rows of 8-bit floats of the weight have SCALES each,
    of BK numbers if they are several, and those of x one.
    """
    if PDL and ready_ptr is None:
        tl.extra.cuda.gdc_launch_dependents()
    W_BYTES: gl.constexpr = weight.dtype.primitive_bitwidth // 8
    X_BYTES: gl.constexpr = x.dtype.primitive_bitwidth // 8
    CHUNKS: gl.constexpr = BK * X_BYTES // LINE
    PARTS: gl.constexpr = X_BYTES // W_BYTES
    STEPS: gl.constexpr = K // BK
    AHEAD: gl.constexpr = min(STAGES - 1, STEPS // SPLITS)
    BYTES: gl.constexpr = (BN * W_BYTES + BM * X_BYTES) * BK
    W_SHARED: gl.constexpr = gl.NVMMASharedLayout(LINE, 8 * W_BYTES, rank=2)
    X_SHARED: gl.constexpr = gl.NVMMASharedLayout(LINE, 8 * X_BYTES, rank=2)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 32 // X_BYTES])

    tile, split = gl.program_id(0), gl.program_id(1)
    begin = STEPS * split // SPLITS
    steps = STEPS * (split + 1) // SPLITS - begin
    w_s = gl.allocate_shared_memory(weight.dtype, [STAGES * CHUNKS // PARTS, BN, LINE // W_BYTES], W_SHARED)
    x_s = gl.allocate_shared_memory(x.dtype, [STAGES * CHUNKS, BM, LINE // X_BYTES], X_SHARED)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    hopper.fence_async_shared()
    for i in gl.static_range(AHEAD):
        mbarrier.expect(full.index(i), BYTES)
        _fetch(weight, full.index(i), w_s, i, tile, (begin + i) * BK, BK, GATE)
    if scale_ptr is not None:
        i = gl.arange(0, BN, layout=gl.SliceLayout(1, SUMS))
        row = tile * BN + i
        if GATE is not None:
            row = tile * (BN // 2) + i // (2 * PAIR) * PAIR + i % PAIR + i // PAIR % 2 * (N // 2)
        scale_ptrs = scale_ptr + gl.minimum(row, N - 1) * SCALES + (begin if SCALES > 1 else 0)
        scales = gl.load(scale_ptrs)
    _wait_for_x(ready_ptr, PDL)
    if ready_ptr is not None:
        # The wait for a kernel's end orders what it stored before what the copy engine reads; a word orders the loads of threads alone.
        fence: gl.constexpr = "fence.proxy.async.global; mov.u32 $0, 0;"
        gl.inline_asm_elementwise(fence, "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1)
    for i in gl.static_range(AHEAD):
        _fetch(x, full.index(i), x_s, i, 0, (begin + i) * BK, BK, None)

    # Steps whose products the tensor cores add up alone; 0 for all.
    ALONE: gl.constexpr = 1 if SCALES > 1 else PROMOTED // BK if X_BYTES == 1 else 0
    sums = gl.zeros([BN, BM], gl.float32, SUMS)
    part = gl.zeros([BN, BM], gl.float32, SUMS)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        for chunk in gl.static_range(CHUNKS):
            w = w_s.index((stage * CHUNKS + chunk) // PARTS)
            rows = x_s.index(stage * CHUNKS + chunk).permute((1, 0))
            if PARTS > 1:
                # Widened in registers, in which the next numbers come: what reads them is waited for.
                w = w.slice(chunk % PARTS * rows.shape[0], rows.shape[0], 1)
                wide = w.load(gl.DotOperandLayout(0, SUMS, 2)).to(gl.float32).to(x.dtype)
                part = hopper.warpgroup_mma_wait(0, [hopper.warpgroup_mma(wide, rows, part, is_async=True)])
            else:
                part = hopper.warpgroup_mma(w, rows, part, is_async=True)
        # All but this step's: the buffer of the step before it is free.
        part = hopper.warpgroup_mma_wait(CHUNKS, [part])
        if ALONE > 0:  # noqa: SIM102 - by zero nothing is divided
            if (step + 1) % ALONE == 0:
                part = hopper.warpgroup_mma_wait(0, [part])
                if SCALES > 1:
                    part *= scales[:, None]
                    scales = gl.load(scale_ptrs + gl.minimum(step + 1, steps - 1))
                sums += part
                part = gl.zeros([BN, BM], gl.float32, SUMS)
        if step + AHEAD < steps:
            there = (step + AHEAD) % STAGES
            k = (begin + step + AHEAD) * BK
            mbarrier.expect(full.index(there), BYTES)
            _fetch(weight, full.index(there), w_s, there, tile, k, BK, GATE)
            _fetch(x, full.index(there), x_s, there, 0, k, BK, None)
    sums += hopper.warpgroup_mma_wait(0, [part])
    if SCALES == 1:
        sums *= scales[:, None]
    if x_scale_ptr is not None:
        m = gl.arange(0, BM, layout=gl.SliceLayout(0, SUMS))
        sums *= gl.load(x_scale_ptr + gl.minimum(m, M - 1))[None, :]

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
    mask = (m < M)[None, :] & valid[:, None]
    if residual_ptr is not None:
        sums += gl.load(residual_ptr + places, mask=mask, other=0.0).to(gl.float32)
    gl.store(out_ptr + places, sums.to(out_ptr.dtype.element_ty), mask=mask)
