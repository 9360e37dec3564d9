"""The sums and gatherings of ranks as formulas, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def add_ranks(
    x: Tensor, parts: Sequence[Tensor], weight: Tensor, eps: float, branch_norm: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of x and all parts, and their sum; with `branch_norm` as weight, the parts' sum is normed before it is added."""
    added = torch.stack([each.float() for each in parts]).sum(0)
    total = x.float() + (added if branch_norm is None else _rms_norm(added, branch_norm, eps))
    return _rms_norm(total, weight, eps), total


def gather_ranks(shards: Sequence[Tensor]) -> Tensor:
    """[M, n] of each rank side by side."""
    return torch.cat(list(shards), dim=1)


def add_slots(partials: Tensor, bias: Tensor | None = None, chosen: Tensor | None = None) -> Tensor:
    """The sum over the slots of [S, M, K], those left out where `chosen` [M, S] is negative, and the bias."""
    there = partials if chosen is None else partials.masked_fill(chosen.T[..., None] < 0, 0)
    total = there.float().sum(0)
    return total if bias is None else total + bias.float()
