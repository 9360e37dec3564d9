"""Feeds of experts whose weights are kept in a form, and widened in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import clamped, weight_rows
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.tiles import load_chunk, load_slice
from nanoserve.kernels.experts.triton import _load_tokens
from nanoserve.kernels.forms.triton import (
    add_left,
    add_right,
    load_rows,
    load_step_scales,
    unit_sums,
    x_factor,
)


@triton.jit
def _load_experts(experts, ptr, SLOTS: tl.constexpr):
    """The tuple `experts` and behind it those of a token's slots."""
    for s in tl.static_range(SLOTS):
        expert = tl.load(ptr + s, cache_modifier=".cg").to(tl.int64)
        experts = experts + (expert,)  # noqa: RUF005 - Triton's tuples know no star
    return experts


@triton.jit
def stored_row_down_kernel(
    inner_ptr, weight_ptr, scale_ptr, bias_ptr, experts_ptr, weights_ptr, stream_ptr,
    SLOTS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr,
    AT_ONCE: tl.constexpr, ANEW: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`row_down_kernel` of a stored weight; in the place of experts that are elsewhere it reads one that is read anyway."""
    let_next_start(PDL)
    CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    token = tl.program_id(0)
    columns = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    rows = tl.minimum(columns, N - 1)
    ks = tl.arange(0, CHUNK)
    stream_ptrs = stream_ptr + token.to(tl.int64) * N + columns
    sums = tl.zeros([ROWS, CHUNK // UNIT], tl.float32)
    biases = tl.zeros([ROWS], tl.float32)
    experts = _load_experts((), experts_ptr + token * SLOTS, SLOTS)
    present = experts[0]
    for s in tl.static_range(1, SLOTS):
        present = tl.maximum(present, experts[s])
    present = tl.maximum(present, 0)
    for first in tl.static_range(0, SLOTS, AT_ONCE):
        pair = token * SLOTS + first
        stored = ()
        for s in tl.static_range(AT_ONCE):
            expert = experts[first + s]
            weight_rows = tl.where(expert >= 0, expert, present) * N + rows
            stored = load_rows(
                stored, weight_ptr, scale_ptr, weight_rows, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION
            )
        if first == 0:
            wait_for_last(PDL)
        for s in tl.static_range(AT_ONCE):
            is_here = experts[first + s] >= 0
            weight = tl.where(is_here, tl.load(weights_ptr + pair + s), 0.0)
            factor = weight * x_factor(FORM)
            for c in tl.static_range(CHUNKS):
                inner_ptrs = inner_ptr + (pair + s).to(tl.int64) * K + ks
                inner = load_chunk(inner_ptrs, ks, c * CHUNK, K, CHUNK, "").to(tl.float32)
                inner = tl.where(is_here, inner * factor, 0.0)
                sums += unit_sums(stored[s * CHUNKS + c], inner, ROWS, CHUNK, UNIT, FORM)
            if bias_ptr is not None:
                expert = tl.maximum(experts[first + s], 0)
                biases += weight * tl.load(bias_ptr + expert * N + rows).to(tl.float32)
    total = tl.sum(sums, 1) + biases
    if not ANEW:
        total += tl.load(stream_ptrs, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(stream_ptrs, total.to(stream_ptr.dtype.element_ty), mask=columns < N)


@triton.jit
def _add_rounded(sums, x, weight, scales, SCALES: tl.constexpr):
    """Sums [M, ROWS] plus the product of 8-bit floats x [M, BK] and [ROWS, BK], times the scales [ROWS] where a row has several."""
    if SCALES == 1:
        sums = tl.dot(x, tl.trans(weight), sums)
    else:
        sums += tl.dot(x, tl.trans(weight)) * scales[None, :]
    return sums


@triton.jit
def _scaled(sums, scale_ptrs, x_scale_ptrs, SCALES: tl.constexpr):
    """Sums times the scales of the rows of x, and those of the weight's rows that have one each."""
    if SCALES == 1:
        sums *= tl.load(scale_ptrs)[None, :]
    return sums * tl.load(x_scale_ptrs)[:, None]


@triton.jit(do_not_specialize=["num_tiles", "T"])
def stored_listed_kernel(
    x_ptr, x_scale_ptr, weight_ptr, scale_ptr, bias_ptr, order_ptr, tiles_ptr, scales_ptr, out_ptr, num_tiles, T, clamp,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr, CLAMPED: tl.constexpr,
    FORM: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, PAIRS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`listed_kernel` of a stored weight: for few tokens it is the left factor, for many the right one (see `forms/triton.py`).

    With `x_scale_ptr` both are 8-bit floats, which tensor cores multiply as they are: `weight_ptr` points to such, and x has a scale for each row.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    HEIGHT: tl.constexpr = 2 * WIDTH if GATE else WIDTH
    COLUMN_TILES: tl.constexpr = (HEIGHT + BN - 1) // BN
    tile = tl.program_id(0) // COLUMN_TILES
    column_tile = tl.program_id(0) % COLUMN_TILES
    expert = tl.load(tiles_ptr + tile).to(tl.int64)
    start = tl.load(tiles_ptr + num_tiles + tile)
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    if expert < 0:
        return
    places = start + tl.arange(0, BM)
    present = places < end
    pairs = tl.load(order_ptr + tl.minimum(places, end - 1))
    sources = pairs // SLOTS if GATE else tl.minimum(places, end - 1)
    rows = expert * HEIGHT + weight_rows(column_tile, tl.arange(0, BN), HEIGHT, BN, GATE)
    ks = tl.arange(0, BK)
    words = tl.arange(0, BK // PACK)
    weight_ptrs = weight_ptr + rows[:, None] * (K // PACK) + words[None, :]
    scale_ptrs = scale_ptr + rows * SCALES
    x_ptrs = x_ptr + sources[:, None].to(tl.int64) * K + ks[None, :]
    NARROW: tl.constexpr = BM < 64
    sums = tl.zeros([BN, BM] if NARROW else [BM, BN], tl.float32)
    for k in range(0, K, BK):
        weight = load_slice(weight_ptrs + k // PACK, words[None, :] < (K - k) // PACK, K % BK == 0, "")
        x = _load_tokens(x_ptrs + k, present, ks[None, :] < K - k, K % BK == 0)
        scales = load_step_scales(scale_ptrs, k, K, BK, GROUP, SCALES, FORM)
        if x_scale_ptr is not None:
            sums = _add_rounded(sums, x, weight, scales, SCALES)
        elif NARROW:
            sums = add_left(sums, weight, scales, tl.trans(x), GROUP, FORM, PAIRS)
        else:
            sums = add_right(sums, x, weight, scales, GROUP, FORM, PAIRS)
    if NARROW:
        sums = tl.trans(sums)
    if x_scale_ptr is not None:
        sums = _scaled(sums, scale_ptrs, x_scale_ptr + sources, SCALES)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + rows).to(tl.float32)[None, :]
    OUTPUTS: tl.constexpr = BN // 2 if GATE else BN
    columns = column_tile * OUTPUTS + tl.arange(0, OUTPUTS)
    if GATE:
        gate, up = tl.split(tl.reshape(sums, [BM, OUTPUTS, 2]))
        sums = clamped(gate, up, clamp, CLAMPED)
        targets = places
    else:
        sums *= tl.load(scales_ptr + pairs)[:, None]
        targets = pairs % SLOTS * T + pairs // SLOTS
    out_ptrs = out_ptr + targets[:, None].to(tl.int64) * WIDTH + columns[None, :]
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=present[:, None] & (columns[None, :] < WIDTH))
