from __future__ import annotations

import itertools

import pytest

from nanoserve.adapters.engine_process.client.kept_engine import TRANSITIONS, KeptEngine
from nanoserve.adapters.engine_process.client.process import TICK, StallWatch
from nanoserve.adapters.engine_process.client.supervisor import MOST_BLAMED, MOST_DEATHS, Restarts
from nanoserve.adapters.engine_process.client.thread import EngineThread
from nanoserve.ports.driving import EngineStatus


def test_a_stop_is_final_and_always_possible_and_each_status_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(EngineStatus)
    for status, after in TRANSITIONS.items():
        assert (EngineStatus.STOPPED in after) == (status is not EngineStatus.STOPPED)
    assert {EngineStatus.STARTING, *itertools.chain(*TRANSITIONS.values())} == set(EngineStatus)
    assert TRANSITIONS[EngineStatus.FAILED] == (EngineStatus.STOPPED,)


def test_a_status_that_the_table_does_not_name_is_refused() -> None:
    engine = KeptEngine(EngineThread(lambda _link: None))
    engine.move(EngineStatus.FAILED)
    with pytest.raises(AssertionError, match="failed is never followed by ready"):
        engine.move(EngineStatus.READY)
    assert engine.status is EngineStatus.FAILED


def test_the_first_restart_is_at_once_and_each_further_one_waits_longer() -> None:
    restarts = Restarts()
    assert [restarts.note_death(7) for _ in range(MOST_DEATHS)] == [0.0, 1.0, 2.0, 4.0, None]
    assert restarts.total == MOST_DEATHS - 1


def test_an_answer_between_deaths_forgives_them_but_they_stay_counted() -> None:
    restarts = Restarts()
    for answers in range(1, 21):
        assert restarts.note_death(answers) == 0.0
    assert restarts.total == 20


def test_deaths_for_which_requests_have_ended_do_not_count_up_to_a_bound() -> None:
    restarts = Restarts()
    delays = [restarts.note_death(7, given_up) for given_up in (0, 0, *range(1, MOST_BLAMED + 1))]
    assert delays == [0.0, 1.0, *[1.0] * MOST_BLAMED]
    more = range(MOST_BLAMED + 1, MOST_BLAMED + 4)
    assert [restarts.note_death(7, given_up) for given_up in more] == [2.0, 4.0, None]


def look_until(watch: StallWatch, start: float, seconds: float, period: float = TICK) -> float | None:
    """When the watch first reports a stall, or None."""
    for number in range(1, int(seconds / period) + 1):
        now = start + number * period
        if watch.is_stalled(now):
            return now - start
    return None


def test_silence_is_a_stall_after_the_timeout_and_not_before() -> None:
    assert look_until(StallWatch(10.0, 100.0), 100.0, 60.0) == 10.0
    assert look_until(StallWatch(10.0, 100.0), 100.0, 9.9) is None


def test_progress_restarts_the_wait() -> None:
    watch = StallWatch(1.0, 0.0)
    assert look_until(watch, 0.0, 0.9) is None
    watch.note_progress()
    assert look_until(watch, 0.75, 0.9) is None


def test_our_own_absence_is_not_the_engines_silence() -> None:
    watch = StallWatch(10.0, 0.0)
    assert not watch.is_stalled(3600.0)
    assert look_until(watch, 3600.0, 20.0) == 9.5
