from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.entrypoints.app.generation import Reservation, Reservations
from nanoserve.entrypoints.app.orders import ServiceSettings
from nanoserve.ports.errors import BadValueError, DrainingError, OverloadedError

SETTINGS = ServiceSettings(model_names=("m",), max_waiting_requests=2, max_waiting_tokens=100)


def test_as_many_as_the_engine_has_rows_for_and_then_the_queue() -> None:
    door = Reservations(SETTINGS)
    places = [door.take([(1, 10)], rows=3)[0] for _ in range(5)]
    with pytest.raises(OverloadedError, match="too many requests: 5 waiting"):
        door.take([(1, 10)], rows=3)
    for place in places[:3]:
        place.start()
    with pytest.raises(OverloadedError):
        door.take([(1, 10)], rows=3)
    places[0].give_back()
    door.take([(1, 10)], rows=3)


def test_deferred_requests_take_nobody_s_place_and_are_let_in_when_others_are_not() -> None:
    door = Reservations(SETTINGS)
    deferred = door.take([(3, 500)] * 3, rows=1, deferred=True)
    deferred[0].count_tokens(900)
    deferred[0].start()
    door.take([(1, 90)] * 3, rows=1)
    with pytest.raises(OverloadedError, match="too many requests: 3 waiting"):
        door.take([(1, 1)], rows=1)
    deferred += door.take([(1, 1)], rows=1, deferred=True)
    for each in deferred:
        each.count_bytes(10**9)
        each.give_back()
    assert (door.living, door.counts["waiting"], door.counts["running_sequences"]) == (3, 3, 0)
    door.begin_drain()
    with pytest.raises(DrainingError):
        door.take([(1, 1)], rows=1, deferred=True)


def test_together_or_not_at_all() -> None:
    door = Reservations(SETTINGS)
    door.take([(1, 1), (1, 1)], rows=1)
    with pytest.raises(OverloadedError):
        door.take([(1, 1), (1, 1)], rows=1)
    assert (door.living, door.counts["waiting"], door.counts["waiting_tokens"]) == (2, 2, 2)
    with pytest.raises(BadValueError, match="at most 3"):
        door.take([(1, 1)] * 4, rows=1)


def test_tokens_that_wait_are_bounded_but_one_alone_may_be_long() -> None:
    door = Reservations(SETTINGS)
    (long,) = door.take([(1, 500)], rows=8)
    with pytest.raises(OverloadedError, match="too many prompt tokens: 500 waiting"):
        door.take([(1, 1)], rows=8)
    long.count_tokens(80)
    door.take([(1, 20)], rows=8)
    with pytest.raises(OverloadedError):
        door.take([(1, 1)], rows=8)
    long.start()
    door.take([(1, 80)], rows=8)


def test_constraints_that_wait_are_bounded_but_one_alone_may_be_long() -> None:
    door = Reservations(attrs.evolve(SETTINGS, max_waiting_bytes=100))
    (long,) = door.take([(1, 1)], rows=8)
    long.count_bytes(150)
    (other,) = door.take([(1, 1)], rows=8)
    with pytest.raises(
        OverloadedError, match="too many constraints: 150 characters of them waiting and 1 more"
    ):
        other.count_bytes(1)
    long.start()
    other.count_bytes(60)
    (last,) = door.take([(1, 1)], rows=8)
    with pytest.raises(OverloadedError):
        last.count_bytes(41)
    other.give_back()
    last.count_bytes(100)
    last.give_back()
    assert door.counts["waiting_bytes"] == 0


def test_nothing_is_accepted_while_the_server_drains() -> None:
    door = Reservations(SETTINGS)
    door.begin_drain()
    with pytest.raises(DrainingError):
        door.take([(1, 1)], rows=8)


def test_texts_that_belong_to_no_request_are_bounded_too() -> None:
    door = Reservations(SETTINGS)
    with door.tokenizing(), door.tokenizing(), pytest.raises(OverloadedError), door.tokenizing():
        pass
    with door.tokenizing():
        assert door.counts["tokenizing_now"] == 1


@given(st.lists(st.tuples(st.sampled_from(["take", "count", "start", "give back"]), st.integers(0, 9))))
def test_the_books_are_those_of_the_places(steps: list[tuple[str, int]]) -> None:
    door = Reservations(attrs.evolve(SETTINGS, max_waiting_requests=5, max_waiting_tokens=10_000))
    places: list[Reservation] = []
    waiting: set[int] = set()
    living: set[int] = set()
    for action, number in steps:
        index = number % len(places) if places else 0
        if action == "take" and len(waiting) < 5:
            places += door.take([(number + 1, number)], rows=0)
            waiting.add(len(places) - 1)
            living.add(len(places) - 1)
        elif places and action == "count" and index in living:
            places[index].count_tokens(number)
        elif places and action == "start":
            places[index].start()
            waiting.discard(index)
        elif places and action == "give back":
            places[index].give_back()
            waiting.discard(index)
            living.discard(index)
        assert door.living == len(living)
        assert door.counts["waiting"] == len(waiting)
        assert door.counts["waiting_tokens"] == sum(places[each].num_tokens for each in waiting)
        running = living - waiting
        assert door.counts["running_sequences"] == sum(places[each].num_sequences for each in running)
