"""Looking tokens up, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def embed(
    tokens: Tensor,
    rows: Sequence[int],
    positions: Sequence[int],
    weight: Tensor,
    scale: float | None = None,
) -> Tensor:
    """The vectors [n, K] of the tokens at tokens[rows[i], positions[i]], times `scale`, rounded to the dtype of `weight`."""
    vectors = torch.stack(
        [weight[int(tokens[row, position])] for row, position in zip(rows, positions, strict=True)]
    )
    return vectors if scale is None else (vectors.float() * scale).to(vectors.dtype)
