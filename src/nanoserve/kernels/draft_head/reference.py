"""The kernels' results by plain operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def enter(vectors: Tensor, states: Tensor, token_norm: Tensor, state_norm: Tensor, eps: float) -> Tensor:
    """Vectors [T, K] and states [T, K] as the layer reads them, float32 [T, 2 K]."""
    pairs = ((vectors.float(), token_norm), (states.float(), state_norm))
    return torch.cat(
        [x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * norm.float() for x, norm in pairs], 1
    )


def guess(logits: Tensor, token_ids: Sequence[int]) -> list[int]:
    """The likeliest token of each row of logits [B, V]."""
    return [token_ids[best] for best in logits.argmax(-1).tolist()]
