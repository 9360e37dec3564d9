"""Memory in which the splits of decode attention leave their partial sums."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class SplitScratch(NamedTuple):
    """Partial sums of every (place, head, split), in this order; kernels in one stream may share it.

    What counts is the product of places and splits, not each of them: a scratch made for 64 places and one split
    serves one place and 64 splits.

    Attributes:
        totals: float32 [sums, head_dim], unnormalised sums of values.
        tops: float32 [sums], the maximum that the exponents are relative to, in units of log2.
        weights: float32 [sums], sums of the exponentials.
    """

    totals: Tensor
    tops: Tensor
    weights: Tensor

    @classmethod
    def create(
        cls, max_batch: int, num_heads: int, head_dim: int, max_splits: int, device: torch.device
    ) -> Self:
        """Scratch for up to max_batch * max_splits (place, split) pairs of num_heads query heads."""
        sums = max_batch * num_heads * max_splits
        return cls(
            totals=torch.empty(sums, head_dim, dtype=torch.float32, device=device),
            tops=torch.empty(sums, dtype=torch.float32, device=device),
            weights=torch.empty(sums, dtype=torch.float32, device=device),
        )
