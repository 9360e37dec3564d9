"""Gates as their formulas, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.gates import Activation, gated


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Arguments as in `cpu.py`; float32."""
    return gated(gate_up, activation)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Compute x / (1 + e^-gate); float32."""
    return x.float() / (1 + torch.exp(-gate.float()))
