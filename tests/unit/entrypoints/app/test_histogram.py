"""Quantiles of what is recent."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.app.measurements import Histogram, RecentValues


def test_there_is_none_without_values() -> None:
    assert RecentValues(Histogram((1.0,))).quantile(0.5) is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 0.0), (0.25, 1.0), (0.5, 2.0), (0.75, 4.0), (1.0, 4.0)])
def test_values_lie_evenly_in_their_bucket_and_no_further_than_the_last_bound(
    share: float, value: float
) -> None:
    whole = Histogram((1.0, 2.0, 4.0))
    recent = RecentValues(whole)
    for each in (0.5, 1.5, 3.0, 100.0):
        whole.observe(each)
    assert recent.quantile(share) == value


def test_half_of_many_in_one_bucket() -> None:
    whole = Histogram((1.0, 3.0))
    recent = RecentValues(whole)
    whole.observe(2.0, times=10)
    assert recent.quantile(0.5) == 2.0


def test_what_is_old_does_not_count() -> None:
    whole = Histogram((1.0, 2.0))
    recent = RecentValues(whole, span=30.0, period=1.0)
    whole.observe(0.5)
    for now in range(100, 131):
        recent.mark(float(now))
        assert recent.quantile(1.0) == (1.0 if now < 130 else None)
    whole.observe(1.5)
    assert recent.quantile(1.0) == 2.0


def test_few_marks_are_kept() -> None:
    recent = RecentValues(Histogram((1.0,)), span=30.0, period=1.0)
    for tick in range(100_000):
        recent.mark(tick / 100)
    assert len(recent._marks) <= 32
