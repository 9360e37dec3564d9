"""The difference between two lists of numbers, measured against their magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from nanoserve.ports.driven import Activations


@attrs.frozen
class ActivationComparison:
    """One row of the report.

    Attributes:
        error: the largest absolute difference; NaN or infinite where either side is.
        magnitude: the largest absolute value of the reference, at least 1.
    """

    name: str
    error: float
    magnitude: float

    def within(self, tolerance: float) -> bool:
        """Whether the error is at most this fraction of the magnitude; False for NaN."""
        return self.error <= tolerance * self.magnitude


def compare(name: str, ours: Iterable[float], reference: Iterable[float]) -> ActivationComparison:
    """Compare number by number; raises `ValueError` where one side has more."""
    error, magnitude = 0.0, 1.0
    for one, other in zip(ours, reference, strict=True):
        difference = abs(one - other)
        if not difference <= error:
            error = difference
            if math.isnan(error):
                break
        magnitude = max(magnitude, abs(other))
    return ActivationComparison(name, error, magnitude)


def compare_activations(ours: Activations, reference: Activations) -> list[ActivationComparison]:
    """Embeddings, every layer, and logits."""
    layers = zip(ours.layers, reference.layers, strict=True)
    return [
        compare("embeddings", _flat(ours.embeddings), _flat(reference.embeddings)),
        *(compare(f"layer {index}", _flat(a), _flat(b)) for index, (a, b) in enumerate(layers)),
        compare("logits", _flat(ours.logits), _flat(reference.logits)),
    ]


def log_probability(logits: Sequence[float], token: int) -> float:
    """The natural logarithm of a token's softmax probability."""
    peak = max(logits)
    return logits[token] - peak - math.log(math.fsum(math.exp(each - peak) for each in logits))


def _flat(rows: Iterable[Sequence[float]]) -> Iterable[float]:
    return (each for row in rows for each in row)
