"""Scattering of runs, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def scatter_runs(target: Tensor, runs: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
    """The target with every run (destination, values) written into it; int32 [N], a new tensor."""
    result = target.clone()
    for destination, values in runs:
        result[destination : destination + len(values)] = torch.tensor(
            list(values), dtype=torch.int32, device=target.device
        )
    return result
