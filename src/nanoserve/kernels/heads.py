"""The transformation of query and key heads before attention, and how their products become weights there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class HeadTransform(NamedTuple):
    """The transformation of query and key heads before they meet: an optional RMS norm of each head, then rope.

    Attributes:
        rotations: float32 [max_position, head_dim]: cosines of a position's head_dim / 2 angles, then their sines. Element i
            of a head is paired with element i + head_dim / 2.
        q_norm: [head_dim], weight of the query heads' norm; None, like `k_norm`, for no norm.
        k_norm: [head_dim], weight of the key heads' norm.
        eps: added to the mean square of those norms.
    """

    rotations: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 0.0


class Scoring(NamedTuple):
    """How products of queries and keys become weights.

    Attributes:
        scale: positive, usually head_dim ** -0.5.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None leaves them as they are.
        sinks: [num_heads], any float dtype: one more score per head, in the softmax alone (Xiao et al. 2023); None for none.
    """

    scale: float
    soft_cap: float | None = None
    sinks: Tensor | None = None


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotate each pair of elements of heads [..., heads, head_dim] by its angle; `rotation` is [..., head_dim]."""
    cos, sin = rotation[..., None, :].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
