"""Some tokens of one head against some columns of its weight per program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def _weight_tile(weight_ptr, k, n, weight_k, weight_n, K: tl.constexpr, N: tl.constexpr):
    mask = (k < K)[:, None] & (n < N)[None, :]
    return tl.load(weight_ptr + k[:, None] * weight_k + n[None, :] * weight_n, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["num_tokens"])
def head_linear_kernel(
    x_ptr, weight_ptr, out_ptr, num_tokens, x_token, x_head, weight_head, weight_k, weight_n, out_token, out_head,
    K: tl.constexpr, N: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (heads, groups of COLUMNS columns, groups of TOKENS tokens); sums in steps of DEPTH, in rising order."""
    let_next_start(PDL)
    head = tl.program_id(0)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    weight_ptr += head.to(tl.int64) * weight_head
    weight = _weight_tile(weight_ptr, k, n, weight_k, weight_n, K, N)
    wait_for_last(PDL)
    tokens = (tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    exists = (tokens < num_tokens)[:, None]
    x_ptrs = x_ptr + tokens[:, None] * x_token + head * x_head
    x = tl.load(x_ptrs + k[None, :], mask=exists & (k < K)[None, :], other=0.0)
    total = tl.dot(x, weight, input_precision="ieee")
    for start in range(DEPTH, K, DEPTH):
        later = start + k
        x = tl.load(x_ptrs + later[None, :], mask=exists & (later < K)[None, :], other=0.0)
        weight = _weight_tile(weight_ptr, later, n, weight_k, weight_n, K, N)
        total = tl.dot(x, weight, total, input_precision="ieee")
    out_ptrs = out_ptr + tokens[:, None] * out_token + head * out_head + n[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=exists & (n < N)[None, :])
