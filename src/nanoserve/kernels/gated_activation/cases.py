"""Gates of any width, alone or in the middle of wider rows, and a row behind them that is not written."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.gated_activation import reference
from nanoserve.kernels.gated_activation.launch import gated_activation_into, sigmoid_mul_into
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of


def check_gated_activation(
    inputs: Inputs, rows: int, size: int, activation: Activation
) -> Iterator[Comparison]:
    """The product, and that the gate is left as it was."""
    gate_up = inputs.normal(rows, 2 * size) * 4
    kept, wanted = gate_up.clone(), inputs.poisoned(rows + 1, size).float()
    wanted[:rows] = reference.gated_activation(gate_up, activation)
    for pdl in inputs.launches:
        out = inputs.poisoned(rows + 1, size)
        inputs.settle()
        gated_activation_into(gate_up, out[:rows], activation=activation, pdl=pdl)
        yield from compare_around_poison(shape_of(gate_up), out, wanted)
        yield Comparison(f"input of {shape_of(gate_up)}", gate_up, kept, exact=True)


def check_sigmoid_mul(inputs: Inputs, rows: int, size: int) -> Iterator[Comparison]:
    """The product, and that the gate is left as it was."""
    projected, x = inputs.normal(rows, 2 * size + 8) * 4, inputs.normal(rows, size)
    kept, gate = projected.clone(), projected[:, size : 2 * size]
    wanted = inputs.poisoned(rows + 1, size).float()
    wanted[:rows] = reference.sigmoid_mul(x, gate)
    for pdl in inputs.launches:
        out = inputs.poisoned(rows + 1, size)
        out[:rows] = x
        inputs.settle()
        sigmoid_mul_into(out[:rows], gate, pdl=pdl)
        yield from compare_around_poison(shape_of(x), out, wanted)
        yield Comparison(f"gate of {shape_of(x)}", projected, kept, exact=True)
