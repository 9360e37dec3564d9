"""The functions of gates, in float32. GELU's hyperbolic tangent is a sigmoid of twice its argument, so each divides once.

Gate and up projections lie one after the other in one weight of N rows. A program that computes their gated product takes
rows j and j + N / 2 in turn, so that both of a pair meet in one program and the weight needs no repacking.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """The product of x and its sigmoid."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + e^x), which is x to the last bit from 20 on."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr):
    """activation(gate) up. Returns once, because Triton also compiles code after a return in a branch."""
    if ACTIVATION == "gelu":
        activated = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        if ACTIVATION == "gelu_tanh":
            steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
        else:
            tl.static_assert(ACTIVATION == "silu")
            steepness = gate
        activated = gate / (1.0 + tl.exp(-steepness))
    return activated * up


@triton.jit
def clamped(gate, up, clamp, CLAMPED: tl.constexpr):
    """silu(gate) up; CLAMPED as in gpt-oss: gate sigmoid(1.702 gate) (up + 1), of a gate and an up within `clamp`."""
    steepness = 1.0
    if CLAMPED:
        gate = tl.minimum(gate, clamp)
        up = tl.maximum(tl.minimum(up, clamp), -clamp) + 1.0
        steepness = 1.702
    return gate / (1.0 + tl.exp(-steepness * gate)) * up


@triton.jit
def output_columns(tile, i, TILE: tl.constexpr, GATE: tl.constexpr):
    """Which output column each i-th of the tile's weight rows belongs to."""
    return tile * (TILE // 2) + i // 2 if GATE is not None else tile * TILE + i


@triton.jit
def weight_rows(tile, i, N: tl.constexpr, TILE: tl.constexpr, GATE: tl.constexpr):
    """The i-th of the tile's rows of the weight; rows past the end read the last one, and the results are not stored."""
    columns = output_columns(tile, i, TILE, GATE)
    if GATE is not None:
        rows = tl.minimum(columns, N // 2 - 1) + i % 2 * (N // 2)
    else:
        rows = tl.minimum(columns, N - 1)
    return rows
