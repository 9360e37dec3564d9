"""RMS norm of the residual stream, with what the layer before it adds, one row per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M"])
def add_rms_norm_kernel(
    x_ptr, partials_ptr, bias_ptr, branch_norm_ptr, weight_ptr, out_ptr, M, eps,
    K: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add SPLITS partial sums and the bias to one row of x, in this order, and write its norm where there is an output.

    With `branch_norm_ptr` it is the norm of those partial sums and the bias that is added.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    ks = tl.arange(0, BLOCK)
    valid = ks < K
    if out_ptr is not None:
        weight = tl.load(weight_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if branch_norm_ptr is not None:
        branch_weight = tl.load(branch_norm_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    stream_ptrs = x_ptr + row * K + ks
    stream = tl.load(stream_ptrs, mask=valid, other=0.0).to(tl.float32)
    # What is added up: the stream itself, or apart from it what is normed before it is added.
    total = stream if branch_norm_ptr is None else tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SPLITS):
        total += tl.load(partials_ptr + (s * M + row) * K + ks, mask=valid, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        total += bias
    if branch_norm_ptr is not None:
        total = stream + total * tl.rsqrt(tl.sum(total * total, 0) / K + eps) * branch_weight
    stream = total
    if SPLITS > 0:
        rounded = stream.to(x_ptr.dtype.element_ty)
        tl.store(stream_ptrs, rounded, mask=valid)
        stream = rounded.to(tl.float32)
    if out_ptr is not None:
        normed = stream * tl.rsqrt(tl.sum(stream * stream, 0) / K + eps) * weight
        tl.store(out_ptr + row * K + ks, normed.to(out_ptr.dtype.element_ty), mask=valid)
