"""SiLU-and-multiply by torch's own operators."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) * up.

    Args:
        gate_up: [..., 2 * size], the gate in the first half and the up projection in the second.

    Returns:
        [..., size] in the dtype of `gate_up`.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
