"""Keys and values in 8-bit floats (e4m3, Micikevicius et al. 2022), each of a head's multiplied by one scale."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

FLOAT8: Final = torch.float8_e4m3fn
LARGEST: Final = 448.0
"""The largest of these numbers."""


def narrowed(heads: Tensor, scales: Tensor | None) -> Tensor:
    """Heads [..., num_kv_heads, head_dim] as a cache keeps them whose heads have these scales, [..., num_kv_heads]; None: as they are.

    What a scale makes larger than the largest number becomes that number.
    """
    if scales is None:
        return heads
    return (heads.float() / scales[..., None]).clamp_(-LARGEST, LARGEST).to(FLOAT8)


def widened(heads: Tensor, scales: Tensor | None, which: int) -> Tensor:
    """Kept keys (0) or values (1), [..., num_kv_heads, head_dim], in float32; the scales are those of a cache."""
    return heads.float() if scales is None else heads.float() * scales[which][:, None]
