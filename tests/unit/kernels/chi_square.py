"""Pearson's test of drawn tokens against exact chances."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def chi_square(tokens: Tensor, chances: Tensor) -> float:
    """The statistic less its degrees of freedom, in standard deviations; excluded tokens must not occur."""
    counts = tokens.bincount(minlength=len(chances)).double()
    assert float(counts[chances == 0].sum()) == 0
    expected = chances * len(tokens)
    common = expected >= 5
    pooled = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]]).clamp(min=1e-9)
    freedom = int(common.sum()) - 1 + bool(wanted[-1] > 1e-3)
    statistic = float(((pooled - wanted).square() / wanted)[wanted > 1e-3].sum())
    return (statistic - freedom) / math.sqrt(2 * max(freedom, 1))
