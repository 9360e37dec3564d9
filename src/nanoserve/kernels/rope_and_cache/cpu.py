"""Rotary embedding in three torch operations: multiply, swap halves, multiply-add."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation(positions: Tensor, signed_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation of each position, computed once per step and shared by all layers.

    Args:
        positions: int64 [T].
        signed_frequencies: float32 [head_dim], radians per position of each pair of elements: first negated, then as they are.

    Returns:
        Cosines and signed sines, float32 [T, 1, head_dim] each. Element i is paired with element i + head_dim / 2; the
        sines of the first half are negated, so that `x * cos + swap_halves(x) * sin` rotates.
    """
    angles = positions[:, None, None] * signed_frequencies
    return angles.cos(), angles.sin()


def apply_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the heads of each token, in place; returns `x`.

    Args:
        x: [T, heads, head_dim], float32 or bfloat16; rotated in float32.
        cos: from `rotation`.
        sin: from `rotation`.
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin, out=x)
