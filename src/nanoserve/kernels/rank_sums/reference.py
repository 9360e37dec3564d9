"""The sums of slots as a formula, in float32."""

from __future__ import annotations

from torch import Tensor


def add_slots(partials: Tensor, bias: Tensor | None = None, chosen: Tensor | None = None) -> Tensor:
    """The sum over the slots of [S, M, K], those left out where `chosen` [M, S] is negative, and the bias."""
    there = partials if chosen is None else partials.masked_fill(chosen.T[..., None] < 0, 0)
    total = there.float().sum(0)
    return total if bias is None else total + bias.float()
