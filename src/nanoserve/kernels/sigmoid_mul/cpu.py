"""The gate by torch's own operators."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply `x` by sigmoid(gate): of one shape and dtype, which is the result's, too."""
    return x * torch.sigmoid(gate)
