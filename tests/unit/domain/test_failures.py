"""A step that fails hangs no request, changes no other request's text, and leaves an engine that goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from nanoserve.domain.invariants import InvariantError, audit
from nanoserve.domain.kv.allocator import BlockAccountingError
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.request import FinishReason
from tests.unit.domain.faults import Fault
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import BreakingRunner, World, oracle


def crowd(world: World, count: int = 5) -> None:
    for number in range(count):
        world.add(f"r{number}", range(number, number + 9), seed=number, max_tokens=8)


def assert_right(world: World, names: Sequence[int]) -> None:
    for number in names:
        answer = world.answer(f"r{number}")
        assert answer.reason is FinishReason.LENGTH
        assert answer.token_ids == oracle(range(number, number + 9), 8, seed=number)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("when", [0, 1, 4, 8])
@pytest.mark.parametrize("fault", Fault)
def test_a_step_that_fails_or_is_interrupted_once_changes_no_answer(
    fault: Fault, when: int, depth: int
) -> None:
    for error in (None, KeyboardInterrupt()):
        if error is not None and fault.name.startswith("TOKEN"):
            continue
        world = World(depth=depth, max_num_seqs=3)
        crowd(world)
        for _ in range(when):
            world.turn()
        world.runner.fail(fault, error)
        with pytest.raises(KeyboardInterrupt) if error else contextlib.nullcontext():
            world.run()
        audit(world.scheduler)
        world.run()
        assert_right(world, range(5))
        assert world.free_blocks == [64]


@pytest.mark.parametrize("fault", [Fault.SUBMIT_LOST, Fault.COLLECT_LATE])
def test_the_guilty_end_alone(fault: Fault) -> None:
    world = World(depth=2)
    crowd(world)
    for _ in range(3):
        world.turn()
    world.runner.fail(fault, StepFailedError("row 2 is not finite", (2,)))
    world.run()
    guilty = world.answer("r2")
    assert guilty.reason is FinishReason.ERROR
    assert guilty.last is not None
    assert guilty.last.error == "StepFailedError: row 2 is not finite"
    assert_right(world, [0, 1, 3, 4])


@pytest.mark.parametrize(
    ("error", "ended"), [(StepFailedError("row 2", (2,)), ["r2"]), (RuntimeError("broken"), [])]
)
def test_every_step_that_fails_is_reported(error: Exception, ended: list[str]) -> None:
    reported: list[Any] = []
    world = World(depth=2, on_failure=lambda *failure: reported.append(failure))
    crowd(world)
    for _ in range(3):
        world.turn()
    world.runner.fail(Fault.COLLECT_LATE, error)
    world.run()
    assert [each[1:] for each in reported] == [(error, ended)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_row_without_a_token_ends_alone_and_no_other_is_computed_again(depth: int) -> None:
    reported: list[Any] = []
    world = World(depth=depth, runner=BreakingRunner, on_failure=lambda *failure: reported.append(failure))
    assert isinstance(world.runner, BreakingRunner)
    world.runner.breaks[4] = (2,)
    crowd(world)
    world.run()
    guilty = world.answer("r2")
    assert guilty.last is not None
    assert guilty.reason is FinishReason.ERROR
    assert guilty.last.error == "StepFailedError: step 4: logits of rows (2,) are not finite"
    assert guilty.token_ids == oracle(range(2, 11), 3 if depth == 1 else len(guilty.token_ids), seed=2)
    assert_right(world, [0, 1, 3, 4])
    assert world.preemptions == 0
    assert world.runner.num_tokens <= 5 * (9 + 7) + depth
    assert [(step, ended) for step, _, ended in reported] == [(4, ["r2"])]
    assert world.free_blocks == [64]


def test_a_guilty_row_that_is_free_accuses_no_sequence() -> None:
    world = World()
    crowd(world, 2)
    world.turn()
    world.runner.fail(Fault.COLLECT_LATE, StepFailedError("row 7", (7,)))
    world.run()
    assert_right(world, range(2))


@pytest.mark.parametrize("guilty", [(), (7,), (0,)])
def test_a_sequence_alone_in_its_step_is_guilty(guilty: tuple[int, ...]) -> None:
    world = World(max_num_seqs=1)
    crowd(world, 2)
    world.turn()
    world.runner.fail(Fault.COLLECT_LATE, StepFailedError("alone", guilty))
    world.run()
    assert world.answer("r0").reason is FinishReason.ERROR
    assert_right(world, [1])


def test_no_other_sequence_is_blamed_when_the_guilty_one_has_ended() -> None:
    world = World(depth=2)
    crowd(world, 3)
    world.turn()
    world.engine.abort("r1")
    world.runner.fail(Fault.COLLECT_LATE, StepFailedError("row 1", (1,)))
    world.turn()
    assert not world.scheduler.suspects
    world.run()
    assert_right(world, [0, 2])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failure_of_steps_whose_sequences_have_all_ended_changes_no_answer(depth: int) -> None:
    world = World(depth=depth, max_num_seqs=2)
    crowd(world)
    world.turn()
    world.engine.abort("r0")
    world.engine.abort("r1")
    if depth == 2:
        world.runner.fail(Fault.COLLECT_LATE)
    world.run()
    assert_right(world, [2, 3, 4] if depth == 1 else [])
    assert sum(world.scheduler.counters.finished.values()) == 5


def test_a_wrong_number_of_tokens_says_so() -> None:
    world = World()
    crowd(world, 1)
    world.runner.fail(Fault.TOKEN_MISSING)
    world.run()
    last = world.answer("r0").last
    assert last is not None
    assert last.error == "StepFailedError: 1 rows were to yield a token and 0 did"


def test_failures_again_and_again_come_to_an_end() -> None:
    world = World(fail_at={step: StepFailedError("always") for step in range(1, 500)}, max_num_seqs=2)
    crowd(world)
    world.run()
    assert {answer.reason for answer in world.answers.values()} == {FinishReason.ERROR}


class BrittleTokenizer(ByteTokenizer):
    """Cannot read one of its tokens."""

    def __init__(self, bad: int) -> None:
        super().__init__([b"x"] * 1000)
        self.bad = bad

    def text_of(self, token_id: int, /) -> str | None:
        return None

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        if self.bad in token_ids:
            raise OverflowError("out of range")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_answer_that_cannot_be_read_costs_its_neighbours_nothing(at: int) -> None:
    world = World(tokenizer=BrittleTokenizer(oracle(range(2, 11), 8, seed=2)[at]))
    crowd(world)
    world.run()
    answer = world.answer("r2")
    assert answer.reason is FinishReason.ERROR
    assert answer.last is not None
    assert answer.last.error == "OverflowError: out of range"
    assert answer.token_ids == oracle(range(2, 11), at, seed=2)
    assert_right(world, [0, 1, 3, 4])
    assert world.scheduler.counters.finished[FinishReason.ERROR] == 1
    assert world.scheduler.counters.finished[FinishReason.LENGTH] == 4


@pytest.mark.parametrize("breakage", ["row", "block", "ledger", "queue", "phase", "slot"])
def test_the_audit_sees_what_no_text_shows(breakage: str) -> None:
    world = World()
    crowd(world)
    world.turn()
    scheduler = world.scheduler
    sequence = next(iter(scheduler.table.rows.running))
    if breakage == "row":
        sequence.row = 7
    elif breakage == "block":
        scheduler.cache.allocators[0].allocate(1)
    elif breakage == "ledger":
        scheduler.counters.accepted += 1
    elif breakage == "queue":
        scheduler.table.waiting.hold_back(sequence)
    elif breakage == "phase":
        del scheduler.table.rows.running[sequence]
    else:
        sequence.decode_offset -= 50
    with pytest.raises((InvariantError, BlockAccountingError)):
        audit(scheduler)
