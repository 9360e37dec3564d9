"""Products whose results do not depend on how many rows are computed together.

Libraries choose their kernels, and with them the order of each sum, by the shape of a product. Here every call has the
same shape: `ROWS` rows, filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

ROWS: Final = 16
"""More make prompts faster and single rows slower: a weight is read once per call, and a call computes all its rows."""


def in_fixed_rows(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """product(x), of any rows [T, in_features], by calls with `ROWS` rows."""
    padded = F.pad(x, (0, 0, 0, -len(x) % ROWS))
    return torch.cat([product(piece) for piece in torch.split(padded, ROWS)])[: len(x)]
