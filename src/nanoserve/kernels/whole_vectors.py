"""Element-wise functions on a CPU whose bits depend only on the element.

torch computes whole vectors in one way and the remainder in another, which may round differently. The remainder depends on a
tensor's shape, and in a large tensor on the cuts for threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

VECTORS: Final = 64
"""Numbers that every processor's vectors divide, in steps of two of them."""
PIECE: Final = 255 * VECTORS
"""The most that torch leaves to one thread, whatever the function: GELU has a limit of its own."""


def in_whole_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function`, which works on each element alone, of `x`: of its shape and dtype."""
    flat = x.flatten()
    padded = F.pad(flat, (0, -len(flat) % VECTORS))
    made = torch.cat([function(piece) for piece in torch.split(padded, PIECE)])
    return made[: len(flat)].view(x.shape)
