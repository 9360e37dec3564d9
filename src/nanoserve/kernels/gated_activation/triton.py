"""Activation and multiplication, one piece of one row per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr):
    """activation(gate) * up; GELU's hyperbolic tangent is a sigmoid of twice its argument, so both divide once."""
    if ACTIVATION == "gelu_tanh":
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
    else:
        tl.static_assert(ACTIVATION == "silu")
        steepness = gate
    return gate / (1.0 + tl.exp(-steepness)) * up


@triton.jit
def gated_activation_kernel(
    gate_up_ptr, out_ptr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Read BLOCK elements of a row's gate and of its up projection, write as many."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    PIECES: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    columns = tl.program_id(0) % PIECES * BLOCK + tl.arange(0, BLOCK)
    valid = columns < SIZE
    gate_ptrs = gate_up_ptr + row * (2 * SIZE) + columns
    gate = tl.load(gate_ptrs, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
    up = tl.load(gate_ptrs + SIZE, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
    product = gated(gate, up, ACTIVATION)
    tl.store(out_ptr + row * SIZE + columns, product.to(out_ptr.dtype.element_ty), mask=valid)
