"""Paged attention one query at a time, in float32: the truth that fast versions are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.paged import PagedCache, attend


def paged_attention(
    query: Tensor,
    cache: PagedCache,
    *,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Shapes as in the package's contract; returns float32 [T, num_heads, head_dim]."""
    places = [
        (row, position)
        for row, (queries, context) in enumerate(zip(query_lengths, context_lengths, strict=True))
        for position in range(context - queries, context)
    ]
    outputs = [
        attend(each, cache, *place, scale=scale, soft_cap=soft_cap, sinks=sinks)
        for each, place in zip(query, places, strict=True)
    ]
    return torch.stack(outputs) if outputs else query.float()
