"""Deltas as their formula, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def low_rank_delta(x: Tensor, a: Tensor, b: Tensor, runs: Sequence[tuple[int, int, int]]) -> Tensor:
    """[T, K] to [T, N] of one adapter: A [parts, r, K], B [N, r], and for each run of columns its first, its end and its part."""
    shrunk = torch.einsum("tk,prk->tpr", x.float(), a.float())
    return torch.cat([shrunk[:, part] @ b[first:end].float().t() for first, end, part in runs], dim=1)
