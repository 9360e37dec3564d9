"""The page's log: the books of any moment, forwards and back, also where records are missing; and looks that tell sequences apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.trace import BlockDropped, BlocksShared, Snapshot, StateCopied, StateHeld, Turn
from tests.unit.entrypoints.page.node import run_node
from tests.unit.entrypoints.page.stress import GROUPS, Run, stress


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", GROUPS, ids=["full", "window", "full+window", "two windows", "full+state"])
def test_the_books_are_the_engines_after_every_turn(groups: tuple[CacheGroup, ...], depth: int) -> None:
    encode, run = trace_format().encode, stress(groups, depth, seed=depth)
    assert_eventful(run, groups)
    followed = run_node("replay", lines=[encode(record) for record in run.records])
    assert len(followed) == len(run.records)
    for number, (books, (seen, restored, *counts)) in enumerate(zip(run.books, followed, strict=True)):
        expected = json.loads(encode(books))
        assert seen == expected, f"after record {number}: {run.records[number]}"
        assert restored == expected, f"restored after record {number}"
        phases = [sequence[5] for sequence in expected[3]]
        counted = {phase: phases.count(phase) for phase in ("waiting", "running", "preempted")}
        assert counts == [counted, counted], f"after record {number}"


def assert_eventful(run: Run, groups: tuple[CacheGroup, ...]) -> None:
    """A run in which nothing happens would show nothing."""
    changes = [change for record in run.records if isinstance(record, Turn) for change in record.kv]
    assert sum(isinstance(record, Snapshot) for record in run.records) > 1
    assert sum(books.preemptions for books in run.books) > 10
    assert max(books.prefix_hits for books in run.books) > 0
    assert {"length", "abort", "error", "timeout"} <= set().union(*(books.finished for books in run.books))
    assert any(isinstance(change, BlocksShared) and change.swapped for change in changes)
    kinds = {type(group.kind) for group in groups}
    assert any(isinstance(change, BlockDropped) for change in changes) == (Window in kinds)
    assert any(isinstance(change, StateCopied) for change in changes) == (Recurrent in kinds)
    assert any(isinstance(change, StateHeld) and change.snapshot for change in changes) == (
        Recurrent in kinds
    )


@pytest.fixture(scope="module")
def run() -> Run:
    return stress(GROUPS[2], depth=2, seed=5)


def lines(run: Run) -> list[bytes]:
    encode = trace_format().encode
    return [encode(record) for record in run.records]


@pytest.mark.parametrize("mode", ["recording", "live"])
def test_every_jump_ends_at_the_books_of_that_moment(run: Run, mode: str) -> None:
    encode = trace_format().encode
    told = run_node("jumps", mode, lines=lines(run))
    assert len(told) >= 600
    for position, snapshot, kept in told:
        assert snapshot == json.loads(encode(run.books[position - 1])), f"at {position}"
        assert mode == "recording" or kept <= 100 * 9 // 8 + 16


def test_a_long_pause_keeps_more_of_a_live_log_but_not_all(run: Run) -> None:
    kept = [entry[2] for entry in run_node("jumps", "live", "paused", lines=lines(run) * 4)]
    assert 300 < max(kept) <= 400 * 9 // 8 + 16


def test_the_rows_add_up_to_what_each_step_computed(run: Run) -> None:
    [[computed, drawn, is_steady, reasons]] = run_node("epochs", lines=lines(run))
    assert drawn == computed
    assert is_steady
    assert len(computed) > 100
    assert {"length", "abort", "error"} <= set(reasons)


def snapshot(step: int, *sequences: tuple[int, str], generated: int = 0) -> list[Any]:
    living = [[key, name, 0, 2, 9, "running", key, 0, 2, 0, [[key + 1]]] for key, name in sequences]
    return ["snapshot", float(step), step, living, [[]], 0, {}, generated, 0, 0]


def arrival(key: int, name: str) -> list[Any]:
    happened = [["admit", key, key, 0, False], ["step", 6, [[key, 0, 2, True]], []]]
    words = [[key, [1, 2], {"1": "one ", "2": "two "}]]
    kv = [["give", key, 0, [[key + 1]]]]
    return ["turn", 6.0, [[key, name, 0, 2, 9]], happened, [], None, 0, kv, 0, 0, words]


def growth(step: int, *keys: int) -> list[Any]:
    happened = [["step", step, [], list(keys)]]
    words = [[key, [3], {"3": "three"}] for key in keys]
    return ["turn", float(step), [], happened, [], None, len(keys), [], 0, 0, words]


def tell(*records: list[Any]) -> Any:
    [told] = run_node("gaps", lines=[json.dumps(each).encode() for each in records])
    return told


@pytest.mark.parametrize("repetition", [["repeat", 0], ["repeat", 0, 2]])
def test_tokens_that_are_computed_again_are_no_step_of_their_own(repetition: list[Any]) -> None:
    before, again, after = (growth(step, 0) for step in (4, 5, 6))
    told = tell(snapshot(3, (0, "a")), before, again, after)
    again[3].append(repetition)
    assert tell(snapshot(3, (0, "a")), before, again, after) == told


@pytest.mark.parametrize(
    "later",
    [
        snapshot(3, (0, "other")),
        snapshot(90, (0, "other"), generated=50),
        snapshot(90, generated=2),
    ],
    ids=["fewer steps", "another one by this key", "fewer tokens"],
)
def test_another_engine_is_known_for_another(later: list[Any]) -> None:
    rows, gaps = tell(snapshot(5, (0, "first"), generated=9), growth(6, 0), later)
    assert gaps == ["restart"]
    assert rows[0][:2] == ["first", "restart"]
    assert [each[:2] for each in rows[1:]] == [["other", None]] * len(later[3])


def test_the_same_engine_is_known_again() -> None:
    later = snapshot(90, (0, "first"), (3, "new"), generated=50)
    rows, gaps = tell(snapshot(5, (0, "first"), (1, "second"), generated=9), growth(6, 0, 1), later)
    assert gaps == ["gap"]
    assert [each[:2] for each in rows] == [["first", None], ["second", "unknown"], ["new", None]]


def test_only_words_that_are_all_there_are_shown() -> None:
    """A sequence that came before the log, or lived on through a gap in it, said something there that is not known."""
    records = [snapshot(5, (0, "old")), arrival(1, "seen"), growth(7, 0, 1)]
    rows, _ = tell(*records)
    assert [each[2] for each in rows] == ["", "one two three"]
    rows, _ = tell(*records, snapshot(20, (0, "old"), (1, "seen"), generated=20), growth(21, 0, 1))
    assert [each[2] for each in rows] == ["", "one two three"]


NUM_COLOURS, NUM_LOOKS = 12, 36


def taken(moves: Sequence[int | None]) -> list[int]:
    """The looks that are taken; a number among the moves is given back."""
    return run_node("take_looks", json.dumps(moves))


def test_no_two_look_alike_over_a_stress_run() -> None:
    encode = trace_format().encode
    run = stress(GROUPS[0], depth=2, seed=3)
    kept: dict[str, int] = {}
    crowds = []
    for sequences in run_node("looks", lines=[encode(record) for record in run.records]):
        seen = {name: look for name, phase, look in sequences if phase == "running"}
        assert None not in seen.values()
        assert len(set(seen.values())) == len(seen), sequences
        assert all(kept.setdefault(name, look) == look for name, _, look in sequences if look is not None)
        crowds.append(len(seen))
    assert max(crowds) == 4
    assert len(set(kept.values())) == NUM_COLOURS, (
        "few sequences need no patterns, and take turns with the colours"
    )


def test_colours_come_before_patterns_and_all_before_any_again() -> None:
    looks = taken([None] * 2 * NUM_LOOKS)
    assert looks[:NUM_COLOURS] == list(range(NUM_COLOURS))
    assert sorted(looks[:NUM_LOOKS]) == sorted(looks[NUM_LOOKS:]) == list(range(NUM_LOOKS))


def test_what_was_given_back_is_taken_before_anything_twice_but_not_at_once() -> None:
    """The next sequence must not be mistaken for the one that has just ended."""
    given_back = (0, 7, 20, 35)
    moves = [move for ended in given_back for move in (ended, None)]
    assert taken([None] * NUM_LOOKS + moves)[NUM_LOOKS:] == list(given_back)
    assert taken([None, 0, None, 1, None]) == [0, 1, 2]
