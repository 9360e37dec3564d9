"""A prefix is shared from the moment it is planned: prompts of one beginning that arrive at once compute it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nanoserve.domain.failures import preempt_all
from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import SequenceAdmitted
from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from nanoserve.ports.request import FinishReason
from tests.unit.domain.faults import Fault
from tests.unit.domain.kv_event_reader import KVEventReader, check_reader
from tests.unit.domain.world import FULL, BreakingRunner, World, oracle

NARROW = CacheGroup(layers=(2,), kind=Window(7))
WIDE = CacheGroup(layers=(3,), kind=Window(50))
LATENT = CacheGroup(layers=(4,), kind=Latent())
STATE = CacheGroup(layers=(5,), kind=Recurrent())
OFTEN = CacheGroup(layers=(6,), kind=Recurrent(prompt_interval=8, decode_interval=8))
KINDS = {
    "full": (FULL,), "latent": (LATENT,), "window": (NARROW,), "full and windows": (FULL, NARROW, WIDE),
    "state": (STATE,), "full and state": (FULL, STATE), "latent and states": (LATENT, OFTEN, STATE),
    "all": (FULL, NARROW, LATENT, STATE),
}  # fmt: skip
BEGINNING = list(range(100, 140))
COUNT = 8


def prompt_of(number: int) -> list[int]:
    return [*BEGINNING, *range(200 + 20 * number, 217 + 19 * number)]


def crowd(world: World, count: int = COUNT, **fields: Any) -> None:
    for number in range(count):
        world.add(str(number), prompt_of(number), seed=number, **fields)


def assert_right(world: World, numbers: Sequence[int], window: int | None = None) -> None:
    for number in numbers:
        assert world.answer(str(number)).token_ids == oracle(prompt_of(number), 8, seed=number, window=window)


def computed(world: World) -> int:
    return sum(chunk.length for plan in world.runner.plans for chunk in plan.chunks)


def once(count: int = COUNT) -> int:
    return len(BEGINNING) + sum(len(prompt_of(number)) - len(BEGINNING) for number in range(count))


def pool_of(world: World) -> BlockAllocator:
    return world.scheduler.cache.allocators[0]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("budget", [9, 16, 60, 512])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_arrive_at_once_compute_their_beginning_once(
    kind: str, depth: int, budget: int, isolated: bool
) -> None:
    world = World(
        groups=KINDS[kind], depth=depth, num_blocks=300, max_num_batched_tokens=budget, isolated=isolated
    )
    crowd(world)
    world.run()
    assert computed(world) == once()
    assert_right(world, range(COUNT), min((each.window for each in KINDS[kind] if each.window), default=None))


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_arrive_while_it_is_computed_join(kind: str) -> None:
    world = World(groups=KINDS[kind], depth=2, num_blocks=300, max_num_batched_tokens=9)
    world.add("0", prompt_of(0), seed=0)
    world.turn()
    world.turn()
    for number in range(1, COUNT):
        world.add(str(number), prompt_of(number), seed=number)
    world.run()
    assert computed(world) == once()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_of_one_request_share_its_prompt_at_once(kind: str, caching: bool) -> None:
    world = World(groups=KINDS[kind], num_blocks=300, max_num_batched_tokens=64, prefix_caching=caching)
    world.add("a", range(41), n=4)
    world.run()
    assert computed(world) == 40 + 4


def test_salts_keep_prompts_apart_in_one_step_too() -> None:
    world = World(num_blocks=300, max_num_batched_tokens=512)
    for number in range(4):
        world.add(str(number), prompt_of(number), cache_salt="one" if number % 2 else "two")
    world.turn()
    (plan,) = world.runner.plans
    assert [chunk.start for chunk in plan.chunks] == [0, 0, 40, 40]
    tables = [set(admitted.block_tables[0]) for admitted in plan.admitted]
    assert not (tables[0] | tables[2]) & (tables[1] | tables[3])


def test_whoever_wants_its_prompt_scored_computes_it_whole() -> None:
    world = World(num_blocks=300, max_num_batched_tokens=512)
    crowd(world, 2)
    world.add("scored", prompt_of(0), prompt_logprobs=0)
    world.run()
    assert computed(world) == once(2) + len(prompt_of(0))


@pytest.mark.parametrize("guilty", [None, (0,), (2,)])
@pytest.mark.parametrize(
    "fault", [Fault.SUBMIT_LOST, Fault.SUBMIT_KEPT, Fault.COLLECT_LOST, Fault.COLLECT_LATE]
)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fails_takes_its_names_back(
    kind: str, depth: int, fault: Fault, guilty: tuple[int, ...] | None
) -> None:
    reader = KVEventReader(4)
    world = World(
        groups=KINDS[kind], depth=depth, num_blocks=300, max_num_batched_tokens=70, kv_events=reader
    )
    crowd(world)
    world.runner.fail(fault, None if guilty is None else StepFailedError("rows", guilty))
    world.turn()
    for group, pool in enumerate(world.scheduler.cache.allocators):
        assert (pool.findable, dict(pool.promised), reader.held(group)) == ((), {}, set())
    world.run()
    check_reader(reader, world.scheduler.cache)
    ended = [each for each in range(COUNT) if world.answer(str(each)).reason is FinishReason.ERROR]
    window = min((each.window for each in KINDS[kind] if each.window), default=None)
    assert len(ended) <= (guilty is not None) or STATE in KINDS[kind]
    assert_right(world, [each for each in range(COUNT) if each not in ended], window)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_a_giver_that_is_aborted_in_flight_are_written_all_the_same(kind: str, depth: int) -> None:
    reader = KVEventReader(4)
    world = World(
        groups=KINDS[kind], depth=depth, num_blocks=300, max_num_batched_tokens=24, kv_events=reader
    )
    replay = Replay((recorder := world.engine.record()).snapshot())
    crowd(world, 3)
    world.scheduler.plan()
    preempt_all(world.scheduler)  # as if it had never been
    world.turn()
    world.engine.abort("0")
    while world.engine.has_work:
        world.turn()
        check_reader(reader, world.scheduler.cache)
        for turn in recorder.take():
            replay.apply(turn)
        assert replay.snapshot() == read_snapshot(world.scheduler, at=replay.at)
    assert_right(world, [1, 2], min((each.window for each in KINDS[kind] if each.window), default=None))


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_told_of_names_that_are_forgotten_before_their_step_is_done(kind: str, depth: int) -> None:
    reader = KVEventReader(4)
    world = World(
        groups=KINDS[kind], depth=depth, num_blocks=300, max_num_batched_tokens=24, kv_events=reader
    )
    crowd(world, 3)
    for _ in range(2):
        world.turn()
        world.engine.forget_prefixes()
        check_reader(reader, world.scheduler.cache)
    while world.engine.has_work:
        world.turn()
        check_reader(reader, world.scheduler.cache)
    assert_right(world, range(3), min((each.window for each in KINDS[kind] if each.window), default=None))


@pytest.mark.parametrize("broken", [(0,), (0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("depth", [1, 2])
def test_whoever_began_with_a_broken_row_is_computed_again(depth: int, broken: tuple[int, ...]) -> None:
    world = World(num_blocks=300, max_num_batched_tokens=512, depth=depth, runner=BreakingRunner)
    assert isinstance(world.runner, BreakingRunner)
    crowd(world, 4)
    world.runner.breaks[1] = broken
    world.turn()
    assert (pool_of(world).findable, dict(pool_of(world).promised)) == ((), {})
    world.run()
    assert world.answer("0").reason is FinishReason.ERROR
    assert_right(world, [1, 2, 3])
    assert computed(world) >= once(4) + once(4) - len(prompt_of(0)) + len(BEGINNING)


def test_a_broken_row_that_gave_nothing_ends_alone_and_its_blocks_are_not_found() -> None:
    world = World(num_blocks=300, max_num_batched_tokens=512, runner=BreakingRunner)
    assert isinstance(world.runner, BreakingRunner)
    crowd(world, 4)
    world.runner.breaks[1] = (3,)
    world.turn()
    assert len(pool_of(world).findable) == len(BEGINNING) // 4 + sum((17 - each) // 4 for each in range(3))
    world.run()
    assert world.answer("3").reason is FinishReason.ERROR
    assert_right(world, [0, 1, 2])
    assert computed(world) == once(4)


def test_only_blocks_that_are_written_are_carried_out() -> None:
    world = World(num_blocks=40, max_num_batched_tokens=512, depth=2, host_slots=80, min_offload_tokens=8)
    crowd(world, 3)
    world.run()
    first, second, *others = world.runner.plans
    assert not first.stores
    assert not second.stores
    assert sum(len(plan.stores) for plan in others) == 10 + 4 + 4 + 3  # the beginning, and three tails
    for number in range(2):
        world.add(f"other{number}", range(500 + 90 * number, 585 + 90 * number), max_tokens=1)
        world.run()
    world.add("0 again", prompt_of(0))
    assert world.admissions("0 again") == [56]
    assert world.answer("0 again").token_ids == oracle(prompt_of(0), 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_crowd_that_lacks_blocks_says_the_same(kind: str, depth: int) -> None:
    world = World(groups=KINDS[kind], depth=depth, num_blocks=24, max_num_batched_tokens=30)
    for number in range(4):
        world.add(str(number), prompt_of(number), seed=number, max_tokens=30)
    resumed = 0
    while world.engine.has_work:
        resumed += sum(isinstance(each, SequenceAdmitted) and each.resumed for each in world.turn())
    window = min((each.window for each in KINDS[kind] if each.window), default=None)
    for number in range(4):
        expected = oracle(prompt_of(number), 30, seed=number, window=window)
        assert world.answer(str(number)).token_ids == expected
    assert resumed or FULL not in KINDS[kind]
