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
import numpy as np
from numpy.typing import NDArray

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
Floats = NDArray[np.float64]


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
    seconds = np.array([step.seconds for step in steps])
    features = np.array([_features(step.work, knee) for step in steps], np.float64)
    weights = seconds**-2.0
    found = np.zeros(5)
    for _ in range(_ROUNDS):
        found = _least_squares(features, seconds, weights)
        weights = seconds**-2.0 / np.maximum(np.abs(features @ found / seconds - 1), _SURE)
    fixed, token, row, context, pair = found.tolist()
    return StepCost(fixed=fixed, weights=token * knee, token=token, row=row, context=context, pair=pair)


def _features(work: StepWork, knee: int) -> tuple[float, ...]:
    return 1, max(work.tokens, knee), work.rows, work.context, work.pairs


def _least_squares(features: Floats, values: Floats, weights: Floats) -> Floats:
    """Weighted least squares with no parameter below 0: the most negative one is left out until none is.

    A small ridge holds near 0 what the data does not determine.
    """
    scales = features.max(axis=0)
    scales[scales == 0] = 1
    rows = features / scales
    weighted = rows.T * weights
    gram, moments = weighted @ rows, weighted @ values
    kept = list(range(len(scales)))
    result = np.zeros(len(scales))
    while kept:
        part = gram[np.ix_(kept, kept)]
        ridge = 1e-9 * part.diagonal().max() * np.eye(len(kept))
        found = np.linalg.solve(part + ridge, moments[kept])
        if found.min() >= 0:
            result[kept] = found / scales[kept]
            break
        kept.pop(int(found.argmin()))
    return result
