"""Latent attention one query at a time, in float32, absorbed over a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.latent import LatentCache, attend


def latent_attention(
    query: Tensor, cache: LatentCache, *, places: Sequence[tuple[int, int]], scale: float
) -> Tensor:
    """Absorbed queries [T, num_heads, latent_dim + rope_dim], each at its (row, position), to float32 [T, num_heads, latent_dim]."""
    return torch.stack(
        [attend(each, cache, *place, scale) for each, place in zip(query, places, strict=True)]
    )
