"""The norm of a GPU alone, after the partial sums of a split product, and in place over queries and keys."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nanoserve.kernels.rms_norm import reference
from nanoserve.kernels.rms_norm.launch import add_partials_into, add_rms_norm_into, norm_qkv_into
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of


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
    qkv = inputs.normal(rows, sizes[0] + 2 * sizes[1])
    wanted = inputs.poisoned(rows + 1, qkv.shape[1]).float()
    wanted[:rows] = reference.norm_qkv(qkv, norms, eps, clip, sizes)
    for pdl in inputs.launches:
        got = inputs.poisoned(rows + 1, qkv.shape[1])
        got[:rows] = qkv
        inputs.settle()
        norm_qkv_into(got[:rows], *norms, eps=eps, clip=clip, sizes=sizes, pdl=pdl)
        yield from compare_around_poison(shape_of(qkv), got, wanted)
