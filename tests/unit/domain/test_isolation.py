"""A step that fails and names no row: the guilty request is found, and it alone ends with an error."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.domain.invariants import InvariantError, audit
from nanoserve.domain.scheduling.limits import RequestClass
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import EngineEvent, SequenceAdmitted
from nanoserve.ports.model_spec import CacheGroup, Window
from nanoserve.ports.request import TRIED, FinishReason
from nanoserve.ports.step import StepPlan, StepResult
from nanoserve.ports.trace import Admission
from tests.unit.domain.faults import Fault
from tests.unit.domain.world import FULL, RecordingRunner, World, oracle

POISON = 999
NARROW = CacheGroup(layers=(2,), kind=Window(5))


class PoisonedRunner(RecordingRunner):
    """Raises where a row whose prompt starts with `POISON` computes a position from `at` on: when the step is collected,
    or, knowing only what was planned, when it is submitted."""

    def __init__(self, *args: Any, at: int = 0, in_submit: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at, self.in_submit = at, in_submit
        self.positions: dict[int, int] = {}
        self.failures = 0
        self.batches: list[int] = []
        self.poisoned: set[int] = set()

    def submit(self, plan: StepPlan, /) -> StepPlan:
        self.batches.append(len(plan.chunks) + len(plan.decoding))
        if self._is_poisoned(plan):
            if self.in_submit:
                self.failures += 1
                raise RuntimeError("poison")
            self.poisoned.add(plan.step)
        return super().submit(plan)

    def collect(self, ticket: StepPlan, /) -> StepResult:
        if ticket.step in self.poisoned:
            self.failures += 1
            raise RuntimeError("poison")
        return super().collect(ticket)

    def _is_poisoned(self, plan: StepPlan) -> bool:
        for row in plan.released:
            self.positions.pop(row, None)
        for each in plan.admitted:
            if each.token_ids[0] == POISON:
                self.positions[each.row] = each.num_computed_tokens
        computed = {chunk.row: chunk.length for chunk in plan.chunks} | dict.fromkeys(plan.decoding, 1)
        for row in self.positions.keys() & computed.keys():
            self.positions[row] += computed[row]
        return any(self.positions[row] > self.at for row in self.positions.keys() & computed.keys())


def poisoned_world(at: int, *, in_submit: bool = False, **settings: Any) -> tuple[World, PoisonedRunner]:
    """Position `at` of poisoned sequences is impossible to compute."""
    world = World(runner=functools.partial(PoisonedRunner, at=at, in_submit=in_submit), **settings)
    assert isinstance(world.runner, PoisonedRunner)
    return world, world.runner


def prompt_of(number: int, length: int, poisoned: Sequence[int]) -> list[int]:
    return [POISON if number in poisoned else number, *range(number + 1, number + length)]


def fill(world: World, poisoned: Sequence[int] = (2,), count: int = 5, length: int = 9) -> None:
    for number in range(count):
        world.add(f"r{number}", prompt_of(number, length, poisoned), seed=number, max_tokens=8)


def assert_only_the_poisoned_ended(
    world: World,
    poisoned: Sequence[int] = (2,),
    *,
    length: int = 9,
    said: int = 0,
    lost: bool = False,
    window: int | None = None,
) -> None:
    """Neighbours say what they would say alone; the poisoned what they said before the position that fails.

    `lost`: some of that may have been in flight.
    """
    for (name, index), answer in world.answers.items():
        number = int(name[1:])
        prompt = prompt_of(number, length, poisoned)
        whole = oracle(prompt, 8, seed=number, index=index, window=window)
        assert answer.last is not None
        if number in poisoned:
            assert (answer.reason, answer.last.error) == (FinishReason.ERROR, "RuntimeError: poison")
            least = 0 if lost else said
            assert least <= len(answer.token_ids) <= said
            assert answer.token_ids == whole[: len(answer.token_ids)]
        else:
            assert (answer.reason, answer.token_ids) == (FinishReason.LENGTH, whole)
    assert world.free_blocks == [pool.num_blocks for pool in world.scheduler.cache.allocators]
    assert not world.scheduler.suspects


@pytest.mark.parametrize("in_submit", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(("at", "said"), [(0, 0), (8, 0), (9, 1), (12, 4), (15, 7)])
def test_the_poisoned_end_alone(at: int, said: int, depth: int, in_submit: bool) -> None:
    world, runner = poisoned_world(at, in_submit=in_submit, depth=depth)
    fill(world)
    world.run()
    assert_only_the_poisoned_ended(world, said=said)
    assert runner.failures == 2


def test_suspects_run_alone_in_lock_step_and_the_others_wait() -> None:
    world, runner = poisoned_world(11, depth=3)
    fill(world, count=3)
    while not runner.failures:
        world.turn()
    for number in (7, 8):
        world.add(f"r{number}", prompt_of(number, 9, ()), seed=number, max_tokens=8)
    start = len(runner.batches)
    suspects = world.scheduler.suspects
    while suspects:
        on_trial = suspects.first
        world.turn()
        assert set(world.scheduler.table.rows.running) <= {on_trial, *([] if suspects else [on_trial])}
        assert len(world.scheduler.flights) <= 1
    assert set(runner.batches[start:]) == {1}
    world.run()
    assert_only_the_poisoned_ended(world, said=3)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("when", [0, 1, 2, 5])
def test_what_another_engine_computed_as_it_died_is_tried_alone_up_to_its_first_tokens(
    when: int, depth: int
) -> None:
    world, runner = poisoned_world(99, depth=depth)
    fill(world, poisoned=())
    for _ in range(when):
        world.turn()
    most = TRIED + 12
    for number in (7, 8):
        prompt = prompt_of(number, 9, ())
        world.add(f"s{number}", prompt, seed=number, max_tokens=most, is_suspect=True)
    start = len(runner.batches)
    while world.scheduler.suspects:
        world.turn()
    assert set(runner.batches[start:]) == {1}
    assert len(runner.batches) - start == 2 * (TRIED + 1)
    world.run()
    for number in range(5):
        prompt = prompt_of(number, 9, ())
        assert world.answer(f"r{number}").token_ids == oracle(prompt, 8, seed=number)
    for number in (7, 8):
        prompt = prompt_of(number, 9, ())
        assert world.answer(f"s{number}").token_ids == oracle(prompt, most, seed=number)


@pytest.mark.parametrize("depth", [1, 2])
def test_who_gets_a_row_is_told_before_the_step_is_submitted(depth: int) -> None:
    told: list[EngineEvent] = []
    known: list[set[str]] = []

    class Dying(RecordingRunner):
        def submit(self, plan: StepPlan, /) -> StepPlan:
            known.append({each.request_id for each in told})
            return super().submit(plan)

    world = World(runner=Dying, depth=depth, max_num_seqs=3)
    world.engine.tell_early(told.extend)
    log = world.engine.record()
    fill(world, poisoned=(), count=3)
    reported = world.turn()
    assert known[0] == {"r0", "r1", "r2"}
    assert not [each for each in reported if isinstance(each, SequenceAdmitted)], "they are told once"
    world.run()
    happened = [each for turn in log.take() for each in turn.happened]
    assert sum(isinstance(each, Admission) for each in happened) == 3


def test_a_trial_costs_one_recomputation() -> None:
    world, runner = poisoned_world(11, prefix_caching=False, max_num_batched_tokens=45)
    fill(world)
    while not runner.failures:
        world.turn()
    start, suspects = world.runner.num_tokens, world.scheduler.suspects
    while suspects:
        world.turn()
    assert world.runner.num_tokens - start == 5 + 5 * 12


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_suspects_that_end_meanwhile_drop_out(end: str, depth: int) -> None:
    world = World(depth=depth)
    for number in range(3):
        deadline = 5.0 if end == "deadline" and number < 2 else None
        world.add(f"r{number}", prompt_of(number, 9, ()), seed=number, max_tokens=8, deadline=deadline)
    world.runner.fail(Fault.COLLECT_LATE)
    world.turn()
    assert world.scheduler.suspects
    if end == "abort":
        world.engine.abort("r0")
        world.engine.abort("r1")
    else:
        world.clock.time = 6.0
    world.turn()
    world.run()
    assert [world.answer(f"r{number}").reason for number in range(2)] == [
        FinishReason.ABORT if end == "abort" else FinishReason.TIMEOUT
    ] * 2
    assert world.answer("r2").token_ids == oracle(prompt_of(2, 9, ()), 8, seed=2)
    assert not world.scheduler.suspects


def test_a_device_that_is_broken_ends_its_batch_and_the_engine_goes_on() -> None:
    world = World(max_num_seqs=3, fail_at={step: StepFailedError("broken") for step in range(3, 7)})
    fill(world, ())
    world.run()
    reasons = [world.answer(f"r{number}").reason for number in range(5)]
    assert reasons == [FinishReason.ERROR] * 3 + [FinishReason.LENGTH] * 2
    assert world.answer("r4").token_ids == oracle(prompt_of(4, 9, ()), 8, seed=4)


def test_a_fault_that_needs_several_rows_comes_to_an_end() -> None:
    class FailsInCompany(PoisonedRunner):
        def _is_poisoned(self, plan: StepPlan) -> bool:
            return self.batches[-1] > 1

    world = World(depth=2, prefix_caching=False, max_num_batched_tokens=8, runner=FailsInCompany)
    fill(world, (), length=20)
    world.run()
    assert_only_the_poisoned_ended(world, (), length=20)


def test_the_audit_sees_other_rows_in_a_trial() -> None:
    world = World()
    fill(world, ())
    world.turn()
    scheduler = world.scheduler
    plan = scheduler.plan()
    assert plan is not None
    scheduler.suspects.blame(scheduler.flights[0], (), ())
    with pytest.raises(InvariantError):
        audit(scheduler)


@given(
    groups=st.sampled_from([(FULL,), (NARROW,), (FULL, NARROW)]),
    depth=st.integers(1, 4),
    at=st.integers(0, 15),
    in_submit=st.booleans(),
    poisoned=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    arrivals=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    n=st.sampled_from([1, 1, 3]),
    limits=st.fixed_dictionaries(
        {
            "num_blocks": st.integers(5, 13),
            "max_num_seqs": st.integers(1, 5),
            "max_num_batched_tokens": st.integers(5, 20),
            "prefix_caching": st.booleans(),
        }
    ),
)
def test_any_poisoned_request_ends_alone_in_any_traffic(
    *,
    groups: tuple[CacheGroup, ...],
    depth: int,
    at: int,
    in_submit: bool,
    poisoned: list[int],
    arrivals: list[int],
    n: int,
    limits: dict[str, Any],
) -> None:
    classes = (RequestClass(), RequestClass(name="batch", priority=2, max_running=2))
    world, _ = poisoned_world(at, in_submit=in_submit, groups=groups, depth=depth, classes=classes, **limits)
    for number, turns in enumerate(arrivals):
        for _ in range(turns):
            world.turn()
        kind = classes[number % 2].name
        prompt = prompt_of(number, 9, poisoned)
        world.add(f"r{number}", prompt, seed=number, max_tokens=8, n=n, request_class=kind)
    world.run()
    window = 5 if NARROW in groups else None
    assert_only_the_poisoned_ended(world, poisoned, said=max(at - 8, 0), lost=in_submit, window=window)
