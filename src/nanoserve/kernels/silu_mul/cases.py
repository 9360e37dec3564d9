"""Gates and up projections of any width, and a row behind them that is not written."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.silu_mul import reference
from nanoserve.kernels.silu_mul.launch import silu_mul_into
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of


def check_silu_mul(inputs: Inputs, rows: int, size: int) -> Iterator[Comparison]:
    """The product, and that the gate is left as it was."""
    gate_up = inputs.normal(rows, 2 * size) * 4
    kept, wanted = gate_up.clone(), inputs.poisoned(rows + 1, size).float()
    wanted[:rows] = reference.silu_mul(gate_up)
    for pdl in inputs.launches:
        out = inputs.poisoned(rows + 1, size)
        inputs.settle()
        silu_mul_into(gate_up, out[:rows], pdl=pdl)
        yield from compare_around_poison(shape_of(gate_up), out, wanted)
        yield Comparison(f"input of {shape_of(gate_up)}", gate_up, kept, exact=True)
