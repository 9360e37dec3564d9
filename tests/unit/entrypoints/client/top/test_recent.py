"""Rates and series of the last minute."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.client.top.following import LatencyQuantiles, ServerStatus
from nanoserve.entrypoints.client.top.recent import RecentStatuses
from nanoserve.entrypoints.client.top.view import bar, milliseconds, per_second, reasons, sparkline


def steps(status: ServerStatus) -> float:
    return status.steps


def running(status: ServerStatus) -> float:
    return status.running


def test_there_is_no_rate_before_there_are_two_statuses() -> None:
    recent = RecentStatuses()
    assert recent.rate(steps) is None
    recent.take(10.0, ServerStatus(status="ready", steps=7))
    assert recent.rate(steps) is None
    recent.take(10.5, ServerStatus(status="ready", steps=12))
    assert recent.rate(steps) == pytest.approx(10.0)


def test_a_rate_is_of_the_last_two_seconds() -> None:
    recent = RecentStatuses()
    for number in range(21):
        recent.take(number / 2, ServerStatus(status="ready", steps=100 * (number >= 19)))
    assert recent.rate(steps) == pytest.approx(50.0), "100 steps in the last two of ten seconds"


def test_a_counter_that_restarts_is_no_negative_rate() -> None:
    recent = RecentStatuses()
    recent.take(0.0, ServerStatus(status="ready", steps=1000))
    recent.take(1.0, ServerStatus(status="ready", steps=5))
    assert recent.rate(steps) == 0
    assert recent.rates(steps) == [0]


def test_series_have_one_number_per_second_and_forget_after_a_minute() -> None:
    recent = RecentStatuses()
    for number in range(2 * 90 + 1):
        second = number / 2
        recent.take(second, ServerStatus(status="ready", steps=int(10 * second), running=int(second)))
    assert recent.levels(running) == list(range(31, 91))
    assert recent.rates(steps) == [10] * 60


def test_what_was_not_seen_is_left_out() -> None:
    recent = RecentStatuses()
    assert recent.levels(running) == []
    for second in range(4):
        recent.take(float(second), ServerStatus(status="ready", steps=second, running=second))
    assert recent.levels(running) == [0, 1, 2, 3]
    assert recent.rates(steps) == [1, 1, 1]


def test_sparklines_end_at_the_right_and_join_seconds_where_there_is_no_room() -> None:
    assert sparkline([0, 7], 60) == "▁█".rjust(60)
    assert sparkline([0] * 30 + [4] * 30, 20) == "▁" * 10 + "█" * 10
    assert sparkline([0, 0], 60) == "▁▁".rjust(60)
    assert sparkline([], 60).strip() == ""
    assert sparkline([0, 7], 60, ascii_only=True) == "_#".rjust(60)
    assert len(sparkline([1.0] * 60, 37)) <= 37


def test_bars_fill_their_width_and_no_more() -> None:
    assert bar([0.5, 0.25, 1.0], 24) == [12, 6, 6]
    assert bar([0.0, 0.0, 1.0], 24) == [0, 0, 24]
    assert bar([1.0, 0.5, 1.0], 24) == [24, 0, 0]


def test_numbers_in_words() -> None:
    assert per_second(None, "tok/s") == "- tok/s"
    assert per_second(12.34, "tok/s") == "12.3 tok/s"
    assert per_second(12345.6, "tok/s") == "12,346 tok/s"
    assert milliseconds(None) == "p50 - p99 -"
    assert milliseconds(LatencyQuantiles(0.0123, 12.34)) == "p50 12 ms p99 12.3 s"
    assert reasons({"stop": 2, "length": 10, "abort": 0}) == "length 10, stop 2"
    assert reasons({}) == "none yet"
