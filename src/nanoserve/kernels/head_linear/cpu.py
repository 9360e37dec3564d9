"""The product of each head as one batched product, on a CPU."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

TOKENS: Final = 16
"""Of the products whose shape never changes."""


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """X [T, heads, K] times weight [heads, K, N], any strides: [T, heads, N]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def fixed_head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """The same with products of one shape, so that a token's bits do not depend on how many tokens there are."""
    tokens = len(x)
    padded = F.pad(x, (0, 0, 0, 0, 0, -tokens % TOKENS))
    pieces = [head_linear(piece.contiguous(), weight) for piece in torch.split(padded, TOKENS)]
    return torch.cat(pieces)[:tokens]
