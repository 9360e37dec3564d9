"""Gate and up projections of many rows on Hopper by warps of three roles, in Gluon, Triton's lower language.

One warp has the copy engine fetch steps of x, of the gate's rows and of the up projection's into shared memory; two groups of four warps each multiply one half of a
tile's rows with both. A thread then holds the sums of a gate and of its up projection: it activates and multiplies them, and the projections are never written.
Programs stay for many tiles: steps of the next are fetched while a tile is written.
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

from nanoserve.kernels.device import gates
from nanoserve.kernels.device.roles import SWIZZLED, barriers
from nanoserve.kernels.linear import triton_tiles

_gated = gluon.jit(gates.gated.fn)
_tile_of = gluon.jit(triton_tiles.tile_of.fn)


@gluon.jit
def _fetch_tiles(x, weight, buffers, T, tiles, N: gl.constexpr, K: gl.constexpr, BAND: gl.constexpr):
    """The role of the warp that fetches."""
    x_s, w_s, full, empty = buffers
    STAGES: gl.constexpr = x_s.shape[0]
    ROWS: gl.constexpr = x_s.shape[1]
    WIDTH: gl.constexpr = w_s.shape[1] // 2
    STEP: gl.constexpr = x_s.shape[2]
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        column_tile, row = _tile_of(tile, T, N, ROWS, WIDTH, BAND)
        for k in range(0, K, STEP):
            stage = step % STAGES
            there, both = full.index(stage), w_s.index(stage)
            mbarrier.wait(empty.index(stage), step // STAGES & 1 ^ 1)
            mbarrier.expect(there, (ROWS + 2 * WIDTH) * STEP * 2)
            tma.async_copy_global_to_shared(x, [row, k], there, x_s.index(stage))
            tma.async_copy_global_to_shared(weight, [column_tile * WIDTH, k], there, both.slice(0, WIDTH))
            tma.async_copy_global_to_shared(
                weight, [N + column_tile * WIDTH, k], there, both.slice(WIDTH, WIDTH)
            )
            step += 1


@gluon.jit
def _multiply_tiles(
    out_ptr, buffers, T, tiles, WHICH: gl.constexpr, N: gl.constexpr, K: gl.constexpr, GATE: gl.constexpr, BAND: gl.constexpr
):  # fmt: skip
    """The role of the warps that multiply half WHICH of each tile's rows."""
    x_s, w_s, full, empty = buffers
    STAGES: gl.constexpr = x_s.shape[0]
    HALF: gl.constexpr = x_s.shape[1] // 2
    WIDTH: gl.constexpr = w_s.shape[1] // 2
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, 2 * WIDTH, 16])
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        column_tile, row = _tile_of(tile, T, N, 2 * HALF, WIDTH, BAND)
        sums = gl.zeros([HALF, 2 * WIDTH], gl.float32, SUMS)
        for k in range(0, K, x_s.shape[2]):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            rows, both = x_s.index(stage).slice(WHICH * HALF, HALF), w_s.index(stage).permute((1, 0))
            sums = warpgroup_mma(rows, both, sums, is_async=True)
            # All but this step's: the buffers of the step before are free.
            sums = warpgroup_mma_wait(1, [sums])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        sums = warpgroup_mma_wait(0, [sums])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))
        gate, up = gl.split(gl.permute(gl.reshape(sums, [HALF, 2, WIDTH]), (0, 2, 1)))
        made = _gated(gate, up, GATE).to(out_ptr.dtype.element_ty)
        rows = row + WHICH * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, made.type.layout))
        columns = column_tile * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, made.type.layout))
        places = rows.to(gl.int64)[:, None] * N + columns[None, :]
        gl.store(out_ptr + places, made, mask=(rows < T)[:, None])


@gluon.jit(do_not_specialize=["T"])
def gated_kernel(
    x, weight, out_ptr, T,
    N: gl.constexpr, K: gl.constexpr, GATE: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr,
    BAND: gl.constexpr,
):  # fmt: skip
    """Program i of P: tiles i, i + P, ... [ROWS, WIDTH] of out = gate(x g^T) (x u^T), with the weight [2 N, K] of g and u.

    `x` and `weight` describe boxes [ROWS, STEP] and [WIDTH, STEP].
    """
    x_s = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, STEP], SWIZZLED)
    w_s = gl.allocate_shared_memory(x.dtype, [STAGES, 2 * WIDTH, STEP], SWIZZLED)
    buffers = x_s, w_s, barriers(STAGES, 1), barriers(STAGES, 2)
    fence_async_shared()
    tiles = gl.cdiv(T, ROWS) * (N // WIDTH)
    gl.warp_specialize(
        [
            (_multiply_tiles, (out_ptr, buffers, T, tiles, 0, N, K, GATE, BAND)),
            (_multiply_tiles, (out_ptr, buffers, T, tiles, 1, N, K, GATE, BAND)),
            (_fetch_tiles, (x, weight, buffers, T, tiles, N, K, BAND)),
        ],
        [4, 1],
        [232, 32],
    )
