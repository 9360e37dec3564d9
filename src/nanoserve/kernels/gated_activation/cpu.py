"""Activation and multiplication by torch's own operators."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.gates import Activation


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Compute activation(gate) * up.

    Args:
        gate_up: [..., 2 * size], the gate in the first half and the up projection in the second.
        activation: of the gate.

    Returns:
        [..., size] in the dtype of `gate_up`.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    activated = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return activated.mul_(up)
