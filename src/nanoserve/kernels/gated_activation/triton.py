"""Gates, one piece of BLOCK elements of one row per program: activation(gate) * up, and x / (1 + e^-gate) in place."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def gated_activation_kernel(
    gate_up_ptr, out_ptr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Read BLOCK elements of a row's gate and of its up projection, write as many."""
    let_next_start(PDL)
    wait_for_last(PDL)
    PIECES: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    columns = tl.program_id(0) % PIECES * BLOCK + tl.arange(0, BLOCK)
    valid = columns < SIZE
    gate_ptrs = gate_up_ptr + row * (2 * SIZE) + columns
    gate = tl.load(gate_ptrs, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
    up = tl.load(gate_ptrs + SIZE, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
    product = gated(gate, up, ACTIVATION)
    tl.store(out_ptr + row * SIZE + columns, product.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def sigmoid_mul_kernel(
    x_ptr, gate_ptr, gate_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Multiply BLOCK elements of a row, in place."""
    let_next_start(PDL)
    wait_for_last(PDL)
    PIECES: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    columns = tl.program_id(0) % PIECES * BLOCK + tl.arange(0, BLOCK)
    valid = columns < SIZE
    x_ptrs = x_ptr + row * SIZE + columns
    x = tl.load(x_ptrs, mask=valid, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(x_ptrs, (x / (1.0 + tl.exp(-gate))).to(x_ptr.dtype.element_ty), mask=valid)
