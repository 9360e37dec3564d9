"""The activations of gates in a kernel's registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr):
    """activation(gate) * up in float32; the hyperbolic tangent of GELU is written as a sigmoid of twice its argument."""
    if ACTIVATION == "gelu_tanh":
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
    else:
        tl.static_assert(ACTIVATION == "silu")
        steepness = gate
    return gate / (1.0 + tl.exp(-steepness)) * up
