"""Rotary embedding in three torch operations: multiply, swap halves, multiply-add."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """See the contract in the package."""
    angles = (positions[:, None] * inverse_frequencies)[:, None]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See the contract in the package."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)
