"""The product of each head as its formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """X [T, heads, K] times weight [heads, K, N]: float32 [T, heads, N]."""
    return torch.einsum("thk,hkn->thn", x.float(), weight.float())
