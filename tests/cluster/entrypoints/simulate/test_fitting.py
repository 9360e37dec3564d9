from __future__ import annotations

import attrs
import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.simulation.observed_steps import ObservedStep, observed_steps
from nanoserve_cluster.entrypoints.simulate.fitting import fit_cost
from tests.cluster.domain.simulation.small_cluster import TRUE, recorded


@pytest.mark.parametrize("depth", [1, 2])
def test_the_cost_of_a_known_device_is_found_again(depth: int) -> None:
    steps = list(observed_steps(recorded(depth)))
    assert len(steps) > 300
    # The clock of a log has microseconds; no wait is taken for a step.
    for step in steps:
        assert step.seconds == pytest.approx(TRUE.seconds(step.work), abs=3e-6)
    fitted = fit_cost(steps)
    assert fitted.median_error < 0.01
    assert fitted.p95_error < 0.05
    assert fitted.total_error < 0.01
    assert (fitted.fitted + fitted.held_out, fitted.held_out) == (len(steps), len(steps) // 4)
    for name in ("token", "context", "pair"):
        assert getattr(fitted.cost, name) == pytest.approx(getattr(TRUE, name), rel=0.1)


def test_outliers_do_not_count() -> None:
    steps = list(observed_steps(recorded(1)))
    disturbed = [
        ObservedStep(step.work, step.seconds * (1.6 if place % 5 == 0 else 1))
        for place, step in enumerate(steps)
    ]
    assert fit_cost(disturbed).median_error < 0.01


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(BadValueError, match="step log: has 20 steps whose time is known and 50 are needed"):
        fit_cost(list(observed_steps(recorded(1)))[:20])


def test_costs_below_zero_are_refused() -> None:
    with pytest.raises(BadValueError, match="token: must be in"):
        attrs.evolve(TRUE, token=-1.0)
