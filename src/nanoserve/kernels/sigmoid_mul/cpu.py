"""The gate by torch's own operators."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.whole_vectors import in_whole_vectors


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Multiply `x` by sigmoid(gate): of one shape and dtype, which is the result's, too."""
    return x * torch.sigmoid(gate)


def invariant_sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """The same, with bits that depend on nothing but a token's own."""
    return x * in_whole_vectors(torch.sigmoid, gate)
