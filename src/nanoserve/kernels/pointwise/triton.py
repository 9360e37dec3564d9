"""Norms and gates: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), and activation(gate) up (Shazeer 2020)."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit(do_not_specialize=["M"])
def add_rms_norm_kernel(
    x_ptr, partials_ptr, bias_ptr, branch_norm_ptr, weight_ptr, out_ptr, M, eps,
    K: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program m: x[m] += sum of partials [SPLITS, M, K] at m + bias, in this order; out[m] = its norm where there is an output.

    A row is one tile [BLOCK]; norm(x) = x / sqrt(mean(x^2) + eps) * weight, of x as rounded to its dtype.

    With `branch_norm_ptr` it is the norm of those partial sums and the bias that is added.
    """
    let_next_start(PDL)
    ks = tl.arange(0, BLOCK)
    valid = ks < K
    if out_ptr is not None:
        weight = tl.load(weight_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if branch_norm_ptr is not None:
        branch_weight = tl.load(branch_norm_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    wait_for_last(PDL)
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


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, eps, K: tl.constexpr, BLOCK: tl.constexpr):
    """Program m: out[m] = (x[m] - mean) / sqrt(variance + eps) * weight + bias; a row is one tile [BLOCK], read before it is written."""
    ks = tl.arange(0, BLOCK)
    valid = ks < K
    weight = tl.load(weight_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * K
    x = tl.load(x_ptr + row + ks, mask=valid, other=0.0).to(tl.float32)
    x = tl.where(valid, x - tl.sum(x, 0) / K, 0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * weight
    if bias_ptr is not None:
        normed += tl.load(bias_ptr + ks, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + ks, normed.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def norm_qkv_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, clip,
    Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, CLIPPED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, which): the query, key or value of qkv[t], of Q, K or V elements in a tile [BLOCK]; normed where there is a weight, and bounded."""
    let_next_start(PDL)
    wait_for_last(PDL)
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


@triton.jit
def gated_activation_kernel(
    gate_up_ptr, out_ptr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program i: BLOCK of a row's SIZE elements, out = activation(gate) up, of gate_up [M, 2 SIZE]."""
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
    """Program i: BLOCK of a row's SIZE elements, x <- x sigmoid(gate), in place; x [M, SIZE]."""
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
