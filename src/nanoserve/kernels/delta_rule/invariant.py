"""The gated delta rule on a CPU whose bits depend on nothing but a row's own tokens: one token of one row at a time.

Every token is then computed in tensors of the same shapes, however rows are cut and whatever they are computed with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.delta_rule.cpu import delta_rule
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights


def invariant_delta_rule(
    projected: Tensor,
    states: DeltaStates,
    weights: DeltaWeights,
    heads: DeltaHeads,
    *,
    slots: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> Tensor:
    """As `delta_rule`, token by token."""
    tokens = iter(torch.split(projected, 1))
    results = [
        delta_rule(next(tokens), states, weights, heads, slots=slot, starts=(position,), lengths=(1,))
        for slot, start, length in zip(torch.split(slots, 1), starts, lengths, strict=True)
        for position in range(start, start + length)
    ]
    return torch.cat(results)
