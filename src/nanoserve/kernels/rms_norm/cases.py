"""The norm of a GPU alone, and after the partial sums of a split product."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nanoserve.kernels.rms_norm import reference
from nanoserve.kernels.rms_norm.launch import add_partials_into, add_rms_norm_into
from nanoserve.kernels.trial import Comparison, Inputs, shape_of


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
    partials = inputs.normal(splits, rows, len(weight), dtype=dtype) if splits else None
    wanted, total = reference.rms_norm(stream, weight, eps), stream
    if partials is not None:
        added = partials.float().sum(0) + (0 if bias is None else bias.float())
        wanted, total = reference.add_rms_norm(added, stream, weight, eps, branch_norm)
    for pdl in inputs.launches:
        x, out = stream.clone(), inputs.poisoned(*stream.shape)
        inputs.settle()
        added_up = {"partials": partials, "bias": bias if splits else None, "branch_norm": branch_norm}
        add_rms_norm_into(x, weight, out, **added_up, eps=eps, pdl=pdl)
        case = f"{shape_of(x)}, {splits} partial sums"
        yield Comparison(f"norm of {case}", out, wanted)
        yield Comparison(f"sum of {case}", x, total, exact=partials is None)


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
    added = partials.float().sum(0) + (0 if bias is None else bias.float())
    _, total = reference.add_rms_norm(added, stream, branch_norm, eps, branch_norm)
    for pdl in inputs.launches:
        x = stream.clone()
        inputs.settle()
        add_partials_into(x, partials, bias=bias, branch_norm=branch_norm, eps=eps, pdl=pdl)
        yield Comparison(f"{shape_of(x)}, {splits} partial sums", x, total)
