"""Norms alone, after the partial sums of a split product and over queries and keys; gates alone and in the middle of wider rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nanoserve.kernels.forms import FP8
from nanoserve.kernels.forms.fp8 import LARGEST
from nanoserve.kernels.forms.launch import quantize_rows_into
from nanoserve.kernels.gates import Activation, gated
from nanoserve.kernels.pointwise import launch, reference
from nanoserve.kernels.testing import Comparison, Inputs, expect


def check_add_rms_norm(
    inputs: Inputs,
    weight: Tensor,
    eps: float,
    rows: int,
    *,
    splits: int = 0,
    bias: Tensor | None = None,
    branch_norm: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Comparison]:
    """Partial sums of `splits` slices in some dtype, and a bias; with no slices the stream has to stay as it is."""
    stream = inputs.normal(rows, len(weight))
    wanted, total, added = reference.rms_norm(stream, weight, eps), stream, {}
    if splits:
        partials = inputs.normal(splits, rows, len(weight), dtype=dtype)
        wanted, total = reference.add_rms_norm(
            partials, bias, stream, weight=weight, eps=eps, branch_norm=branch_norm
        )
        added = {"partials": partials, "bias": bias, "branch_norm": branch_norm}
    stream_after = expect(total, stream, exact=not splits)
    return inputs.compare(
        launch.add_rms_norm_into, x=stream_after, weight=weight, out=expect(wanted), eps=eps, **added
    )


def check_layer_norm(
    inputs: Inputs, weight: Tensor, bias: Tensor | None, eps: float, rows: int
) -> Iterator[Comparison]:
    """Norms of rows whose means are not zero; apart from them, and in their place."""
    before = 2 * inputs.normal(rows, len(weight)) + 1
    wanted, named = (
        reference.layer_norm(before, weight, bias, eps),
        {"weight": weight, "bias": bias, "eps": eps},
    )
    yield from inputs.compare(launch.layer_norm_into, x=before, out=expect(wanted), **named)
    launch.layer_norm_into(before, weight, bias, before, eps=eps)
    yield Comparison("in place", before, wanted)


def check_add_partials(
    inputs: Inputs,
    branch_norm: Tensor,
    eps: float,
    rows: int,
    *,
    splits: int = 1,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Comparison]:
    """The norm of partial sums in some dtype, added to the stream alone."""
    stream = inputs.normal(rows, len(branch_norm))
    partials = inputs.normal(splits, rows, len(branch_norm), dtype=dtype)
    _, total = reference.add_rms_norm(
        partials, bias, stream, weight=branch_norm, eps=eps, branch_norm=branch_norm
    )
    added = {"partials": partials, "bias": bias, "branch_norm": branch_norm}
    return inputs.compare(launch.add_partials_into, x=expect(total, stream), eps=eps, **added)


def check_norm_qkv(
    inputs: Inputs,
    rows: int,
    sizes: tuple[int, int],
    norms: tuple[Tensor | None, Tensor | None],
    *,
    eps: float,
    clip: float | None = None,
) -> Iterator[Comparison]:
    """Norms of queries and keys of `sizes`; values are as wide as keys."""
    before = inputs.normal(rows, sizes[0] + 2 * sizes[1])
    named = {"q_norm": norms[0], "k_norm": norms[1], "eps": eps, "clip": clip, "sizes": sizes}
    qkv = expect(reference.norm_qkv(before, norms, eps, clip, sizes), before)
    return inputs.compare(launch.norm_qkv_into, qkv=qkv, **named)


def check_gated_activation(
    inputs: Inputs, rows: int, size: int, activation: Activation
) -> Iterator[Comparison]:
    """The product; the gate is left as it was."""
    gate_up = inputs.normal(rows, 2 * size) * 4
    out = expect(gated(gate_up, activation))
    return inputs.compare(launch.gated_activation_into, gate_up=gate_up, out=out, activation=activation)


def check_quantize_rows(
    inputs: Inputs, rows: int, size: int, activation: Activation | None = None
) -> Iterator[Comparison]:
    """Rows in 8-bit floats, some of them large and one of zeros, within half a step of theirs, or one where an interpreter cuts off."""
    x = inputs.normal(rows, size if activation is None else 2 * size)
    x *= inputs.normal(rows, 1).exp()
    x[0] = 0
    numbers, scales = inputs.poisoned(rows, size, dtype=FP8.dtype), inputs.poisoned(rows, dtype=torch.float32)
    inputs.settle()
    quantize_rows_into(x, numbers, scales, activation=activation, pdl=inputs.pdl)
    wanted = x.float() if activation is None else gated(x, activation)
    case = f"{rows} x {size}, {activation}"
    yield Comparison(f"scales of {case}", scales * LARGEST, wanted.abs().amax(1))
    off = (numbers.float() * scales[:, None] - wanted).abs()
    close = off <= wanted.abs() / 8 + scales[:, None] / 512
    yield Comparison(f"numbers of {case}", close, torch.ones_like(close), exact=True)


def check_sigmoid_mul(inputs: Inputs, rows: int, size: int) -> Iterator[Comparison]:
    """The product, in place; the gate is left as it was."""
    before, projected = inputs.normal(rows, size), 4 * inputs.normal(rows, 2 * size + 8)
    gate = projected[:, size : 2 * size]
    return inputs.compare(
        launch.sigmoid_mul_into, x=expect(reference.sigmoid_mul(before, gate), before), gate=gate
    )
