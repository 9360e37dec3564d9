"""Activation and multiplication as their formula, in float32."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.gates import Activation, gated


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """Arguments as in `cpu.py`; float32."""
    return gated(gate_up, activation)
