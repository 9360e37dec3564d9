"""Gates of any width, alone or in the middle of wider rows."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.gated_activation import reference
from nanoserve.kernels.gated_activation.launch import gated_activation_into, sigmoid_mul_into
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.testing import Comparison, Inputs, expect


def check_gated_activation(
    inputs: Inputs, rows: int, size: int, activation: Activation
) -> Iterator[Comparison]:
    """The product; the gate is left as it was."""
    gate_up = inputs.normal(rows, 2 * size) * 4
    out = expect(reference.gated_activation(gate_up, activation))
    return inputs.compare(gated_activation_into, gate_up=gate_up, out=out, activation=activation)


def check_sigmoid_mul(inputs: Inputs, rows: int, size: int) -> Iterator[Comparison]:
    """The product, in place; the gate is left as it was."""
    before, projected = inputs.normal(rows, size), 4 * inputs.normal(rows, 2 * size + 8)
    gate = projected[:, size : 2 * size]
    return inputs.compare(sigmoid_mul_into, x=expect(reference.sigmoid_mul(before, gate), before), gate=gate)
