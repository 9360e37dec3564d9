"""Attention of prefill chunks one query at a time, in float32: the truth that the kernel is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.paged import PagedCache, attend


def prefill_attention(
    query: Tensor,
    cache: PagedCache,
    *,
    chunks: Sequence[tuple[int, int, int, int]],
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Float32 [T, num_heads * head_dim], NaN for tokens of no chunk; chunks as in `make_tiles`, the rest as in `launch`."""
    out = torch.full(query.shape, torch.nan, device=query.device)
    heads = query.view(len(query), -1, cache.keys.shape[3])
    for row, start, length, token in chunks:
        for offset in range(length):
            attended = attend(
                heads[token + offset], cache, row, start + offset, scale=scale, soft_cap=soft_cap, sinks=sinks
            )
            out[token + offset] = attended.flatten()
    return out
