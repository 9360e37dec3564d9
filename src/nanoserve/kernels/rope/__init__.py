"""Rotary position embedding (Su et al. 2021) in the rotate-half layout of Hugging Face checkpoints."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.rope import torch_native


def rotation(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation of each position, computed once per step and shared by all layers.

    Args:
        positions: int64 [T].
        inverse_frequencies: float32 [head_dim / 2], radians per position of each pair of elements.

    Returns:
        Cosines and signed sines, float32 [T, 1, head_dim] each. Element i is paired with element
        i + head_dim / 2; the sines of the first half are negated, so that
        `x * cos + swap_halves(x) * sin` rotates.
    """
    return torch_native.rotation(positions, inverse_frequencies)


def apply_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the heads of each token.

    Args:
        x: [T, heads, head_dim], float32 or bfloat16; rotated in float32.
        cos: from `rotation`.
        sin: from `rotation`.

    Returns:
        [T, heads, head_dim] in the dtype of `x`.
    """
    return torch_native.apply_rotation(x, cos, sin)
