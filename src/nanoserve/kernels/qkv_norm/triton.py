"""Norms of whole queries and keys on a GPU, in place, one of the three vectors of a token per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_qkv_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, clip,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, CLIPPED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Norm this program's vector, if it is a query or a key that has a weight, and bound it."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    which = tl.program_id(1)
    start = tl.where(which == 0, 0, tl.where(which == 1, Q, Q + K))
    size = tl.where(which == 0, Q, tl.where(which == 1, K, V))
    columns = tl.arange(0, BLOCK)
    valid = columns < size
    ptrs = qkv_ptr + tl.program_id(0).to(tl.int64) * (Q + K + V) + start + columns
    x = tl.load(ptrs, mask=valid, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    if q_norm_ptr is not None:
        weight = tl.load(q_norm_ptr + columns, mask=columns < Q, other=0.0).to(tl.float32)
        x = tl.where(which == 0, x * factor * weight, x)
    if k_norm_ptr is not None:
        weight = tl.load(k_norm_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
        x = tl.where(which == 1, x * factor * weight, x)
    if CLIPPED:
        x = tl.minimum(tl.maximum(x, -clip), clip)
    tl.store(ptrs, x.to(qkv_ptr.dtype.element_ty), mask=valid)
