"""Products of many rows on the tensor cores, a tile at a time: those of one order of summation, and those of packed numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.tiles import load_slice
from nanoserve.kernels.forms.triton import load_step_scales, step
from nanoserve.kernels.linear.triton import is_last


@triton.jit
def tile_of(program, T, N: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BAND: tl.constexpr):
    """A program's tile of columns, and the first of its BT rows of T. Programs run through BAND tiles of rows column by column; the last band is lower if these do not fill it."""
    WIDTH: tl.constexpr = (N + BN - 1) // BN
    first = program // (BAND * WIDTH) * BAND
    height = tl.minimum(tl.cdiv(T, BT) - first, BAND)
    within = program % (BAND * WIDTH)
    return within // height, (first + within % height) * BT


@triton.jit
def _sum_blocks(x_ptr, weight_ptr, first_row, first_column, K: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Sums [BT, BN] of blocks that the copy engine fetches by two descriptors. Instructions have 64 rows: where there are fewer, the weight's are taken."""
    LEFT: tl.constexpr = BN if BT < 64 else BT
    sums = tl.zeros([LEFT, BT + BN - LEFT], tl.float32)
    for k in range(0, K, BK):
        x, weight = x_ptr.load([first_row, k]), weight_ptr.load([first_column, k])
        if BT < 64:
            sums = tl.dot(weight, tl.trans(x), sums, input_precision="ieee")
        else:
            sums = tl.dot(x, tl.trans(weight), sums, input_precision="ieee")
    return tl.trans(sums) if BT < 64 else sums


@triton.jit
def _sum_slices(
    x_ptr, weight_ptr, scale_ptr, ts, rows, column_tile, T,
    K: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, SCALES: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Sums [BT, BN] of `ts` rows of x and `rows` of the weight, each step of which has its scale where SCALES are several."""
    ks = tl.arange(0, BK)
    x_ptrs = x_ptr + ts[:, None].to(tl.int64) * K + ks[None, :]
    weight_ptrs = weight_ptr + rows[None, :].to(tl.int64) * K + ks[:, None]
    sums = tl.zeros([BT, BN], tl.float32)
    for k in range(0, K, BK):
        # Rows behind the last are not read: a tile of 64 in which the last stood for them would take twice the time.
        x = tl.load(x_ptrs + k, mask=(ts[:, None] < T) & (ks[None, :] < K - k), other=0.0)
        weight = load_slice(weight_ptrs + k, ks[:, None] < K - k, K % BK == 0, "")
        if SCALES < 2:
            sums = tl.dot(x, weight, sums, input_precision="ieee")
        elif SHARED:
            sums += tl.dot(x, weight) * tl.load(scale_ptr + column_tile * BN * SCALES + k // GROUP)
        else:
            sums += tl.dot(x, weight) * tl.load(scale_ptr + rows * SCALES + k // GROUP)[None, :]
    return sums


@triton.jit(do_not_specialize=["T"])
def invariant_kernel(
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, out_ptr, bias_ptr, residual_ptr, T,
    N: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BAND: tl.constexpr,
    GROUP: tl.constexpr, SCALES: tl.constexpr, SHARED: tl.constexpr, DESCRIBED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i: a tile [BT, BN] of out = x weight^T + bias + residual; K in steps of BK from 0, nothing depends on T but the grid and the tile.

    DESCRIBED: `x_ptr` and `weight_ptr` are descriptors, in blocks [BT, BK] and [BN, BK].
    BAND tiles of rows walk over the weight together, so that what they read of it stays in the L2 cache. 8-bit floats have a scale for each
    row of x, and SCALES for each row of the weight, of GROUP numbers; a step is a group or lies within one. Tensor cores add up few bits of their products: each step's
    are added in float32.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    column_tile, first_row = tile_of(tl.program_id(0), T, N, BT, BN, BAND)
    ts = first_row + tl.arange(0, BT)
    columns = column_tile * BN + tl.arange(0, BN)
    rows = tl.minimum(columns, N - 1)
    if DESCRIBED:
        sums = _sum_blocks(x_ptr, weight_ptr, first_row, column_tile * BN, K, BT, BN, BK)
    else:
        sums = _sum_slices(
            x_ptr, weight_ptr, scale_ptr, ts, rows, column_tile, T, K, BT, BN, BK, GROUP, SCALES, SHARED
        )
    if x_scale_ptr is not None:
        if SCALES == 1:
            sums *= tl.load(scale_ptr + rows)[None, :]
        sums *= tl.load(x_scale_ptr + tl.minimum(ts, T - 1))[:, None]
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    mask = (ts[:, None] < T) & (columns[None, :] < N)
    places = ts[:, None].to(tl.int64) * N + columns[None, :]
    if residual_ptr is not None:
        sums += tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, sums.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _join_slices(sums, partials_ptr, counters_ptr, program, SPLITS: tl.constexpr):
    """Leave the sums of one of a tile's slices to the last of its programs to arrive; of that one the sums of all, added up in order, and 1."""
    SIZE: tl.constexpr = sums.shape[0] * sums.shape[1]
    places = tl.arange(0, sums.shape[0])[:, None] * sums.shape[1] + tl.arange(0, sums.shape[1])[None, :]
    ptrs = partials_ptr + program * (SPLITS * SIZE) + places
    tl.store(ptrs + tl.program_id(1) * SIZE, sums)
    last = is_last(counters_ptr + program, SPLITS).to(tl.int32)
    total = tl.zeros(sums.shape, tl.float32)
    if last == 1:
        for s in tl.static_range(SPLITS):  # past the L1 cache, as in `linear.triton`
            total += tl.load(ptrs + s * SIZE, cache_modifier=".cg")
    return total, last


@triton.jit(do_not_specialize=["T"])
def packed_kernel(
    x_ptr, weight_ptr, scale_ptr, out_ptr, bias_ptr, residual_ptr, partials_ptr, counters_ptr, T,
    N: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BAND: tl.constexpr, SPLITS: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Program (i, s): a tile [BT, BN] of out = x weight^T + bias + residual, of a stored weight that is widened in registers, as the left factor.

    DESCRIBED: `x_ptr` is a descriptor of blocks [BT, BK]. Else rows behind the last are others again, rather than the last, which many would ask for at once, or
    left out, which takes a comparison for each load. Where K is in slices, the last program of a tile to arrive adds the sums up in order.
    """
    SLICE: tl.constexpr = (K + BK * SPLITS - 1) // (BK * SPLITS) * BK
    EVEN: tl.constexpr = K % (BK * SPLITS) == 0
    program = tl.program_id(0)
    start = tl.program_id(1) * SLICE if SPLITS > 1 else 0
    column_tile, first_row = tile_of(program, T, N, BT, BN, BAND)
    ts = first_row + tl.arange(0, BT)
    columns = column_tile * BN + tl.arange(0, BN)
    ks, words = start + tl.arange(0, BK), start // PACK + tl.arange(0, BK // PACK)
    rows = tl.minimum(columns, N - 1)
    x_ptrs = x_ptr if DESCRIBED else x_ptr + (ts % T)[None, :].to(tl.int64) * K + ks[:, None]
    weight_ptrs = weight_ptr + rows[:, None].to(tl.int64) * (K // PACK) + words[None, :]
    scale_ptrs = scale_ptr + rows * SCALES
    sums = tl.zeros([BN, BT], tl.float32)
    for k in range(0, SLICE, BK):
        stored = load_slice(weight_ptrs + k // PACK, words[None, :] < (K - k) // PACK, EVEN, "")
        scales = load_step_scales(scale_ptrs, start + k, K, BK, GROUP, SCALES, FORM)
        if DESCRIBED:
            x = tl.trans(x_ptr.load([first_row, start + k]))
        else:
            x = load_slice(x_ptrs + k, ks[:, None] < K - k, EVEN, "")
        wide, _ = step(stored, scales, x.dtype, True, GROUP, FORM, PAIRS)
        sums = tl.dot(wide, x, sums, input_precision="ieee")
        if DESCRIBED:  # an instruction that is none makes the next step wait (see `add_left`)
            sums = tl.inline_asm_elementwise("", "=f,0", [sums], dtype=tl.float32, is_pure=True, pack=1)
    if SPLITS > 1:
        sums, last = _join_slices(sums, partials_ptr, counters_ptr, program, SPLITS)
        if last == 0:
            return
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + rows).to(tl.float32)[:, None]
    mask = (ts[None, :] < T) & (columns[:, None] < N)
    places = ts[None, :].to(tl.int64) * N + columns[:, None]
    if residual_ptr is not None:
        sums += tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, sums.to(out_ptr.dtype.element_ty), mask=mask)
