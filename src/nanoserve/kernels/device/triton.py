"""Rows in 8-bit floats, for products that read both of their sides in these."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def store_quantized(out_ptrs, scale_ptr, x, valid):
    """Write a row, float32 [BLOCK], as 8-bit floats of which the largest is the largest that there is, and their scale; zero if not `valid`."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), 2.0**-100) / 448.0
    tl.store(scale_ptr, scale)
    x /= scale
    # To four bits (Dekker 1971) before it is converted, since Triton's interpreter carries nothing if it rounds.
    over = x * (2.0**20 + 1)
    tl.store(out_ptrs, (over - (over - x)).to(out_ptrs.dtype.element_ty), mask=valid)


@triton.jit
def quantize_rows_kernel(
    x_ptr, out_ptr, scale_ptr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program m: out[m] = x[m] / scales[m] in 8-bit floats, a row in one tile [BLOCK]; with ACTIVATION of activation(gate) up, x [M, 2 SIZE]."""
    let_next_start(PDL)
    wait_for_last(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < SIZE
    if ACTIVATION is None:
        x = tl.load(x_ptr + row * SIZE + columns, mask=valid, other=0.0).to(tl.float32)
    else:
        gate_ptrs = x_ptr + row * (2 * SIZE) + columns
        gate = tl.load(gate_ptrs, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
        up = tl.load(gate_ptrs + SIZE, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
        x = gated(gate, up, ACTIVATION)
    store_quantized(out_ptr + row * SIZE + columns, scale_ptr + row, x, valid)
