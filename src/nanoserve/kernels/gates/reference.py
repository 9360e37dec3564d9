"""Gates as their formulas, in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanoserve.kernels.gates import Activation


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(first half of the last dimension) times its second half; float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "silu":
        return gate / (1 + torch.exp(-gate)) * up
    return gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up
