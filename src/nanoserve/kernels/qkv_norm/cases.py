"""Projections of a few tokens, with norms, a bound, or both, and a token behind them that is not touched."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from nanoserve.kernels.qkv_norm import reference
from nanoserve.kernels.qkv_norm.launch import norm_qkv_into
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of


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
