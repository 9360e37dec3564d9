"""The common part of gated feed-forward networks (Shazeer 2020): the activations of their gates, and the definition of a gate."""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh"]
"""SiLU, GELU, or its approximation by a hyperbolic tangent (Hendrycks and Gimpel 2016)."""
ACTIVATIONS: Final[tuple[Activation, ...]] = ("silu", "gelu", "gelu_tanh")


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """The definition, in float32: activation(first half of the last dimension) times its second half."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "silu":
        return gate / (1 + torch.exp(-gate)) * up
    if activation == "gelu":
        return gate / 2 * (1 + torch.erf(gate / math.sqrt(2))) * up
    return gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up
