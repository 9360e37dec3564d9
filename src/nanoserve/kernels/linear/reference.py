"""A linear layer with everything the kernels may fuse with it, as its formula in float32."""

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
    residual: Tensor | None = None,
    gate: bool = False,
) -> Tensor:
    """RMS norm of x [M, K], times weight [N, K] transposed, plus bias, then the gate, plus the residual; float32."""
    x = x.float()
    if norm_weight is not None:
        x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * norm_weight.float()
    product = x @ weight.float().T
    if bias is not None:
        product = product + bias.float()
    if gate:
        product = gated(product)
    return product if residual is None else product + residual.float()


def gated(product: Tensor) -> Tensor:
    """SiLU of the first half of each row, times the second half; float32."""
    gates, ups = product.float().chunk(2, dim=-1)
    return gates / (1 + torch.exp(-gates)) * ups
