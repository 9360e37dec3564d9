"""Gates by torch's own operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.gates import Activation
from nanoserve.kernels.whole_vectors import in_whole_vectors

_FUNCTIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Compute activation(gate) * up.

    Args:
        gate_up: [..., 2 * size], the gate in the first half and the up projection in the second.
        activation: of the gate.

    Returns:
        [..., size] in the dtype of `gate_up`.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return _FUNCTIONS[activation](gate).mul_(up)


def invariant_gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    gate, up = gate_up.chunk(2, dim=-1)
    return in_whole_vectors(_FUNCTIONS[activation], gate).mul_(up)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply `x` by sigmoid(gate): of one shape and dtype, which is the result's, too."""
    return x * torch.sigmoid(gate)


def invariant_sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    return x * in_whole_vectors(torch.sigmoid, gate)
