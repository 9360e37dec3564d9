"""Norms of whole queries and keys as their formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_qkv(
    qkv: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    eps: float,
    clip: float | None,
    sizes: tuple[int, int],
) -> Tensor:
    """Queries, keys and values, x / sqrt(mean(x^2) + eps) * weight where there is a weight, within -clip and clip; float32.

    `sizes` are those of a query and of a key; what is left is the value.
    """
    q, k, v = torch.split(qkv.float(), [*sizes, qkv.shape[1] - sum(sizes)], dim=1)
    normed = [
        x if weight is None else x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()
        for x, weight in zip((q, k), norms, strict=True)
    ]
    joined = torch.cat((*normed, v), dim=1)
    return joined if clip is None else joined.clamp(-clip, clip)
