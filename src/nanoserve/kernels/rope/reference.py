"""Rotary embedding as its definition: each pair (i, i + head_dim / 2) turned by position x inverse frequency."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim]; float32."""
    first, second = x.float().chunk(2, dim=-1)
    angles = (positions.float()[:, None] * inverse_frequencies.float())[:, None]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
