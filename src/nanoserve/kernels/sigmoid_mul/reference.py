"""The gate as its formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Compute x / (1 + e^-gate); float32."""
    return x.float() / (1 + torch.exp(-gate.float()))
