"""RMS norm as its formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension; float32."""
    x = x.float()
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, branch_norm: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum; with `branch_norm` as weight, x is normed before it is added."""
    total = residual.float() + (x.float() if branch_norm is None else rms_norm(x, branch_norm, eps))
    return rms_norm(total, weight, eps), total
