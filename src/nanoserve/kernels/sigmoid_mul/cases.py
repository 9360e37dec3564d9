"""Gates that lie in the middle of wider rows, and a row behind those that are multiplied."""

from __future__ import annotations

from collections.abc import Iterator

from nanoserve.kernels.sigmoid_mul import reference
from nanoserve.kernels.sigmoid_mul.launch import sigmoid_mul_into
from nanoserve.kernels.trial import Comparison, Inputs, compare_around_poison, shape_of


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
