"""A linear layer with the norm before it, as its formula in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """RMS norm of x [M, K], times weight [N, K] transposed, plus bias; float32."""
    x = x.float()
    if norm_weight is not None:
        x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * norm_weight.float()
    product = x @ weight.float().T
    return product if bias is None else product + bias.float()
