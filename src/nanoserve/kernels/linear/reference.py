"""A linear layer with everything the kernels may fuse with it, as its formula in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.gates import Activation, gated


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: Activation | None = None,
) -> Tensor:
    """RMS norm of x [M, K], times weight [N, K] transposed, plus bias, then the gate, plus the residual; float32."""
    x = x.float()
    if norm_weight is not None:
        x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * norm_weight.float()
    product = x @ weight.float().T
    if bias is not None:
        product = product + bias.float()
    if gate is not None:
        product = gated(product, gate)
    return product if residual is None else product + residual.float()
