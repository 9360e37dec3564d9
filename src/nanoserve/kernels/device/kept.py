"""Keys and values as a cache keeps them: in the dtype of queries, or in 8-bit floats (e4m3) that are multiplied by a scale.

Products of 8-bit floats are made in float16, which holds each of them exactly: from them to float16 is one instruction for two of them on
compute capability 8.9 and newer, and to bfloat16 it is five. Queries are multiplied by the scale of keys, and results by that of
values, so that nothing of the cache is.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)


@triton.constexpr_function
def wide_dtype(dtype, is_scaled):
    """The dtype of products with queries of a dtype."""
    return tl.float16 if is_scaled and dtype != tl.float32 else dtype


@triton.jit
def narrowed(x, scale, KEPT: tl.constexpr):
    """X as 8-bit floats; values that are too large become the largest number."""
    if scale is not None:
        x = tl.math.div_rn(x.to(tl.float32), scale)
        x = tl.clamp(x, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(KEPT)


@triton.jit
def scaled(x, scale):
    """X times the scale, if there is one."""
    return x if scale is None else x * scale


@triton.jit
def widened(values, WIDE: tl.constexpr):
    """Kept values [TOKENS, ELEMENTS] in the dtype of products.

    A product wants a column's neighbours side by side. The compiler would bring single bytes into that order before it widens them, each
    by an instruction; but not across a split, and of 16 bits a matrix is turned at once.
    """
    if values.dtype != WIDE:
        TOKENS: tl.constexpr = values.shape[0]
        ELEMENTS: tl.constexpr = values.shape[1]
        even, odd = tl.split(tl.reshape(values.to(WIDE), [TOKENS, ELEMENTS // 2, 2]))
        values = tl.reshape(tl.join(even, odd), [TOKENS, ELEMENTS])
    return values
