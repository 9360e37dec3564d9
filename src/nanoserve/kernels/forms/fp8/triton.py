"""8-bit floats in kernels; they are widened by way of float32, since straight to bfloat16 is one slow instruction for each."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _floats(words):
    return words.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def unit_sums(words, scales, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNIT: tl.constexpr):
    """See `forms.triton.unit_sums`."""
    return tl.sum(tl.reshape(_floats(words) * x[None, :], [ROWS, CHUNK // UNIT, UNIT]), 2) * scales


@triton.jit
def load_step_scales(ptrs, k, K: tl.constexpr, GROUP: tl.constexpr):
    """The scale of each row, [ROWS], from number k on, which is where a group begins or inside of one."""
    return tl.load(ptrs + tl.minimum(k, K - 1) // GROUP)


@triton.jit
def step(words, scales, DTYPE: tl.constexpr, WHOLE: tl.constexpr):
    """See `forms.triton.step`."""
    wide = _floats(words)
    factors = scales[:, None]
    if WHOLE:
        wide *= factors
    return wide.to(DTYPE), factors
