"""RMS norm as its formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension; float32."""
    x = x.float()
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum."""
    total = residual.float() + x.float()
    return rms_norm(total, weight, eps), total
