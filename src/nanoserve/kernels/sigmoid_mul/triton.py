"""The gate of gated attention, one piece of one row per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid_mul_kernel(
    x_ptr, gate_ptr, gate_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Multiply BLOCK elements of a row, in place."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    PIECES: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    columns = tl.program_id(0) % PIECES * BLOCK + tl.arange(0, BLOCK)
    valid = columns < SIZE
    x_ptrs = x_ptr + row * SIZE + columns
    x = tl.load(x_ptrs, mask=valid, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(x_ptrs, (x / (1.0 + tl.exp(-gate))).to(x_ptr.dtype.element_ty), mask=valid)
