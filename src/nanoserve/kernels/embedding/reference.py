"""Looking tokens up, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def embed(tokens: Tensor, rows: Sequence[int], positions: Sequence[int], weight: Tensor) -> Tensor:
    """The vectors [n, K] of the tokens at tokens[rows[i], positions[i]]."""
    return torch.stack(
        [weight[int(tokens[row, position])] for row, position in zip(rows, positions, strict=True)]
    )
