"""Copies one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def scatter_runs(target: Tensor, runs: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """The target with every run (destination, values) written into it; int32 [N], a new tensor."""
    result = target.clone()
    for destination, values in runs:
        result[destination : destination + len(values)] = torch.tensor(
            list(values), dtype=torch.int32, device=target.device
        )
    return result


def copy_pages(pool: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """The state of a pool [layers, pages, ...] after each source page is copied to its target."""
    after = pool.clone()
    for source, target in pairs:
        after[:, target] = pool[:, source]
    return after


def embed(
    tokens: Tensor, rows: Sequence[int], positions: Sequence[int], weight: Tensor, scale: float | None = None
) -> Tensor:
    """The vectors [n, K] of the tokens at tokens[rows[i], positions[i]], times `scale`, rounded to the dtype of `weight`; -1 stands for token 0."""
    vectors = torch.stack(
        [weight[max(int(tokens[row, position]), 0)] for row, position in zip(rows, positions, strict=True)]
    )
    return vectors if scale is None else (vectors.float() * scale).to(vectors.dtype)
