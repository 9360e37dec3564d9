"""Fits a `StepCost` to observed steps, and says how far it is off for steps that it has not seen.

For a given number of tokens at which multiplying takes as long as reading the weights, the cost is linear in its parameters: they
are the least absolute relative errors, found by weighted least squares again and again (iteratively reweighted), none below 0. That
number itself is the best of powers of 2. Absolute errors, because a log has outliers: a step during which the machine did something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.simulation.observed_steps import ObservedStep
from nanoserve_cluster.ports.step_cost import StepCost, StepWork

FEWEST_STEPS: Final = 50
HELD_OUT: Final = 4
"""One step of so many is kept for the judgement."""
_MOST_STEPS: Final = 3000
_ROUNDS: Final = 8
_SURE: Final = 0.01
"""Errors below this fraction count alike."""


@attrs.frozen(kw_only=True)
class FittedCost:
    """A cost, and its relative errors on the steps that were held out: of single steps, and of all together."""

    cost: StepCost
    fitted: int
    held_out: int
    median_error: float
    p95_error: float
    total_error: float


def fit_cost(steps: Sequence[ObservedStep]) -> FittedCost:
    """The cost that says best how long the steps took; raises `BadValueError` for too few of them."""
    if len(steps) < FEWEST_STEPS:
        message = f"has {len(steps)} steps whose time is known and {FEWEST_STEPS} are needed; record a longer run under load"
        raise BadValueError("step log", message)
    learned = [step for place, step in enumerate(steps) if place % HELD_OUT != HELD_OUT - 1]
    judged = steps[HELD_OUT - 1 :: HELD_OUT]
    sample = learned[:: -(-len(learned) // _MOST_STEPS)]
    largest = max(step.work.tokens for step in sample)
    knees = [2**power for power in range(largest.bit_length() + 1)]
    cost = min((_fit_with_knee(sample, knee) for knee in knees), key=lambda found: _mean_error(found, sample))
    errors = sorted(_error(cost, step) for step in judged)
    predicted = math.fsum(cost.seconds(step.work) for step in judged)
    return FittedCost(
        cost=cost,
        fitted=len(learned),
        held_out=len(judged),
        median_error=errors[len(errors) // 2],
        p95_error=errors[min(int(0.95 * len(errors)), len(errors) - 1)],
        total_error=abs(predicted / math.fsum(step.seconds for step in judged) - 1),
    )


def _error(cost: StepCost, step: ObservedStep) -> float:
    return abs(cost.seconds(step.work) / step.seconds - 1)


def _mean_error(cost: StepCost, steps: Sequence[ObservedStep]) -> float:
    """Outliers count no more than an error of 1."""
    return math.fsum(min(_error(cost, step), 1.0) for step in steps) / len(steps)


def _fit_with_knee(steps: Sequence[ObservedStep], knee: int) -> StepCost:
    features = [_features(step.work, knee) for step in steps]
    weights = [1.0 / step.seconds**2 for step in steps]
    found = [0.0] * 5
    for _ in range(_ROUNDS):
        found = _least_squares(features, [step.seconds for step in steps], weights)
        weights = [
            1.0 / step.seconds**2 / max(abs(_dot(found, row) / step.seconds - 1), _SURE)
            for row, step in zip(features, steps, strict=True)
        ]
    fixed, token, row, context, pair = found
    return StepCost(fixed=fixed, weights=token * knee, token=token, row=row, context=context, pair=pair)


def _features(work: StepWork, knee: int) -> tuple[float, ...]:
    return (1.0, float(max(work.tokens, knee)), float(work.rows), float(work.context), float(work.pairs))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _least_squares(
    features: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Weighted least squares with no parameter below 0: the most negative one is left out until none is."""
    size = len(features[0])
    scales = [max((row[place] for row in features), default=0.0) or 1.0 for place in range(size)]
    rows = [[each / scale for each, scale in zip(row, scales, strict=True)] for row in features]
    gram = [[0.0] * size for _ in range(size)]
    moments = [0.0] * size
    for row, value, weight in zip(rows, values, weights, strict=True):
        for i in range(size):
            weighted = weight * row[i]
            moments[i] += weighted * value
            for j in range(i, size):
                gram[i][j] += weighted * row[j]
    for i in range(size):
        for j in range(i):
            gram[i][j] = gram[j][i]
    kept = list(range(size))
    while kept:
        found = _solve([[gram[i][j] for j in kept] for i in kept], [moments[i] for i in kept])
        least = min(found)
        if least >= 0:
            break
        kept.pop(found.index(least))
    result = [0.0] * size
    for place, each in zip(kept, found if kept else [], strict=True):
        result[place] = each / scales[place]
    return result


def _solve(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Gaussian elimination with pivots; what the data does not determine is held near 0 by a small ridge."""
    size = len(values)
    ridge = 1e-9 * max(matrix[i][i] for i in range(size))
    rows = [[*line, value] for line, value in zip(matrix, values, strict=True)]
    for i in range(size):
        rows[i][i] += ridge
    for i in range(size):
        pivot = max(range(i, size), key=lambda line: abs(rows[line][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for line in range(i + 1, size):
            factor = rows[line][i] / rows[i][i]
            for column in range(i, size + 1):
                rows[line][column] -= factor * rows[i][column]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
