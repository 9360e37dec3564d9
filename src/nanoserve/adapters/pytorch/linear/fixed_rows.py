"""Linear layers whose results do not depend on how many rows are computed together.

Libraries choose their kernels, and with them the order of each sum, by the shape of a product. Here every call has the
same shape: `ROWS` rows, filled up with zeros.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear.plain import Linear

ROWS: Final = 16
"""More make prompts faster and single rows slower: a weight is read once per call, and a call computes all its rows."""


class FixedRowsLinear(Linear):
    """Any other `Linear`, called with `ROWS` rows at a time."""

    def __init__(self, inner: Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = inner.in_features, inner.out_features, inner.bias
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features]."""
        rows = len(x)
        padded = F.pad(x, (0, 0, 0, -rows % ROWS))
        return torch.cat([self.inner(piece) for piece in torch.split(padded, ROWS)])[:rows]
