"""RMS norm by torch's own operator, which computes bfloat16 input in float32."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the contract in the package."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See the contract in the package."""
    total = residual + x
    return rms_norm(total, weight, eps), total
