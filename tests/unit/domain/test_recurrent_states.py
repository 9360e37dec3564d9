"""Recurrent cache groups: where snapshots are kept, when they are found, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.domain.failures import preempt_all
from nanoserve.domain.invariants import InvariantError, audit
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.step import BlockCopy, StepPlan
from tests.fakes.memory_runner import BrokenPlanError
from tests.unit.domain.world import FULL, World, oracle

STATE = CacheGroup(layers=(2,), kind=Recurrent(prompt_interval=16, decode_interval=8))
RARE = CacheGroup(layers=(2,), kind=Recurrent(prompt_interval=4096, decode_interval=4096))
NARROW = CacheGroup(layers=(1,), kind=Window(5))


def world_of(*groups: CacheGroup, **limits: Any) -> World:
    settings: dict[str, Any] = {"max_num_batched_tokens": 64}
    return World(groups=groups, **(settings | limits))


def chunks(world: World) -> list[tuple[int, int]]:
    return [(each.start, each.start + each.length) for plan in world.runner.plans for each in plan.chunks]


def copies(world: World) -> list[tuple[int, BlockCopy]]:
    return [(plan.step, each) for plan in world.runner.plans for each in plan.copies]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (3, [(0, 3)]),
        (4, [(0, 4)]),
        (5, [(0, 4), (4, 5)]),
        (16, [(0, 12), (12, 16)]),
        (18, [(0, 16), (16, 18)]),
        (41, [(0, 16), (16, 32), (32, 40), (40, 41)]),
    ],
)
def test_a_prompts_chunks_end_at_its_reuse_points(length: int, expected: list[tuple[int, int]]) -> None:
    world = world_of(STATE)
    world.add("a", range(length), max_tokens=1)
    world.run()
    assert chunks(world) == expected
    assert len(copies(world)) == len(expected) - 1


def test_a_prompt_is_not_cut_where_prefixes_are_not_cached() -> None:
    world = world_of(STATE, prefix_caching=False)
    world.add("a", range(41), max_tokens=20)
    world.run()
    assert chunks(world) == [(0, 41)]
    assert copies(world) == []


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("groups", [(STATE,), (FULL, STATE), (NARROW, STATE), (STATE, FULL)])
def test_a_hit_copies_a_snapshot_into_a_fresh_state(groups: tuple[CacheGroup, ...], depth: int) -> None:
    world = world_of(*groups, depth=depth)
    world.add("warm", range(18), max_tokens=1)
    world.run()
    world.runner.plans.clear()
    world.add("a", [*range(16), 99, 98, 97], max_tokens=3)
    assert world.admissions("a") == [16]
    first = world.runner.plans[0]
    (admitted,), (copy,) = first.admitted, first.copies
    group = groups.index(STATE)
    assert (copy.group, (copy.target,)) == (group, admitted.block_tables[group])
    assert copy.source != copy.target
    assert world.answer("a").token_ids == oracle(
        [*range(16), 99, 98, 97], 3, window=5 if NARROW in groups else None
    )


def test_nothing_is_copied_into_a_state_that_begins() -> None:
    world = world_of(STATE, num_blocks=1)
    for name in "ab":
        world.add(name, [5, 6, ord(name)], max_tokens=3)
        world.run()
    assert copies(world) == []
    assert world.answer("b").token_ids == oracle([5, 6, ord("b")], 3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_decoding_keeps_a_snapshot_every_so_many_tokens(depth: int) -> None:
    world = world_of(RARE, depth=depth)
    world.add("a", range(3), max_tokens=30)
    world.run()
    assert copies(world) == []
    world = world_of(STATE, depth=depth)
    world.add("a", range(3), max_tokens=30)
    world.run()
    # Step 1 computes the prompt and step s the token at s + 1, so 8 tokens are behind a row before step 7.
    assert [step for step, _ in copies(world)] == [7, 15, 23]
    said = oracle(range(3), 30)
    world.add("b", [*range(3), *said, 1, 2], max_tokens=2)
    assert world.admissions("b") == [24]


def test_a_running_row_holds_its_newest_snapshot_and_older_ones_stay_findable() -> None:
    world = world_of(STATE, num_blocks=16)
    world.add("a", range(41), max_tokens=30)
    for _ in range(6):
        world.turn()
    (sequence,) = world.scheduler.table.rows.running
    pool = world.scheduler.cache.allocators[0]
    assert len(pool.findable) == 3
    assert pool.num_blocks - pool.num_free == 2
    assert sequence.snapshots[0] in pool.findable
    assert sequence.block_tables[0][0] not in pool.findable


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_snapshot_is_named_only_when_its_step_came_home(depth: int) -> None:
    world = world_of(STATE, depth=depth)
    scheduler = world.scheduler
    world.add("a", range(6), max_tokens=4)
    plans = [scheduler.plan(), scheduler.plan()]
    assert all(isinstance(plan, StepPlan) for plan in plans)
    assert plans[1] is not None
    assert len(plans[1].copies) == 1
    assert scheduler.cache.allocators[0].findable == ()


def test_a_row_that_ends_before_its_next_step_leaves_no_snapshot() -> None:
    world = world_of(STATE, depth=1)
    scheduler = world.scheduler
    world.add("a", range(6), max_tokens=4)
    world.turn()
    world.engine.abort("a")
    world.run()
    assert scheduler.cache.allocators[0].findable == ()
    world.add("b", range(6), max_tokens=4)
    world.turn()
    plan = scheduler.plan()
    assert plan is not None
    assert plan.copies
    world.engine.abort("b")
    assert scheduler.cache.allocators[0].num_free == 64 - 2
    preempt_all(scheduler)
    assert scheduler.cache.allocators[0].num_free == 64


def test_what_a_copy_in_flight_reads_is_not_handed_out() -> None:
    world = world_of(STATE, num_blocks=2, max_num_seqs=2)
    world.add("warm", range(6), max_tokens=1)
    world.run()
    (kept,) = world.scheduler.cache.allocators[0].findable
    world.add("a", range(6), max_tokens=3)
    world.add("b", range(50, 53), max_tokens=3)
    plan = world.scheduler.plan()
    assert plan is not None
    assert [each.source for each in plan.copies] == [kept]
    assert len(plan.admitted) == 1
    assert world.scheduler.cache.allocators[0].num_free == 0


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_admission_waits_where_states_run_out(slots: int) -> None:
    world = world_of(FULL, STATE, num_blocks=(64, slots), max_num_seqs=4)
    for name in "abcd":
        world.add(name, [ord(name)] * 7, max_tokens=12)
    world.turn()
    assert len(world.scheduler.table.rows.running) == min(slots, 4)
    world.run()
    for name in "abcd":
        assert world.answer(name).token_ids == oracle([ord(name)] * 7, 12)
    assert world.preemptions == 0


def test_where_prompts_part_a_snapshot_is_kept_for_the_third() -> None:
    world = world_of(FULL, RARE)
    shared = list(range(30))
    world.add("a", [*shared, 101, 102, 103, 104, 105], max_tokens=1)
    world.run()
    world.add("b", [*shared, 201, 202, 203, 204, 205], max_tokens=1)
    assert world.admissions("b") == [0]
    assert (0, 28) in chunks(world)
    world.add("c", [*shared, 301, 302, 303, 304, 305], max_tokens=1)
    assert world.admissions("c") == [28]


def test_a_state_without_its_blocks_and_blocks_without_their_state_are_no_hits() -> None:
    world = world_of(FULL, STATE, num_blocks=(64, 8))
    world.add("warm", range(18), max_tokens=1)
    world.run()
    full, state = world.scheduler.cache.allocators
    for pool, other in ((full, state), (state, full)):
        pool.forget()
        assert other.findable
        world.add("a", range(18), max_tokens=1)
        assert world.admissions("a") == [0]


def test_an_audit_sees_states_in_the_wrong_place() -> None:
    world = world_of(STATE)
    for start in (0, 50):
        world.add(f"r{start}", range(start, start + 18), max_tokens=9)
    for _ in range(4):
        world.turn()
    scheduler = world.scheduler
    one, other = scheduler.table.rows.running
    pool = scheduler.cache.allocators[0]
    audit(scheduler)
    live = one.block_tables[0][0]

    pool.register(live, 42)
    with pytest.raises(InvariantError, match="a live state can be found"):
        audit(scheduler)
    pool.forget()

    one.block_tables[0].append(pool.allocate(1)[0])
    with pytest.raises(InvariantError, match="not exactly one live state"):
        audit(scheduler)
    pool.release(one.block_tables[0].pop())

    one.block_tables[0][0] = other.block_tables[0][0]
    pool.release(live)
    pool.retain(other.block_tables[0][0])
    with pytest.raises(InvariantError, match="the live one of two rows"):
        audit(scheduler)


def test_the_memory_runner_sees_a_copy_that_was_missed() -> None:
    world = world_of(STATE)
    world.add("warm", range(18), max_tokens=1)
    world.run()
    world.add("a", range(18), max_tokens=1)
    plan = world.scheduler.plan()
    assert plan is not None
    (copy,) = plan.copies
    world.runner.states[0][copy.source][3] = 77
    world.runner.submit(plan)
    with pytest.raises(BrokenPlanError, match="a state has seen"):
        world.runner.collect(plan)


def lost(world: World) -> dict[str, int]:
    return dict(world.engine.state().prefix_lost)


def test_what_one_kind_of_groups_loses_of_a_prefix_goes_by_its_name() -> None:
    world = world_of(FULL, NARROW, RARE)
    world.add("first", range(41), max_tokens=1)
    world.run()
    world.add("branch", [*range(22), 99, 98, 97], max_tokens=1)
    assert world.admissions("branch") == [0]
    assert lost(world) == {"state": 20}


def test_what_is_evicted_from_a_window_alone_is_lost_to_windows() -> None:
    world = world_of(FULL, NARROW, num_blocks=(64, 8))
    for name, first in (("first", 0), ("other", 50)):
        world.add(name, range(first, first + 30), max_tokens=1)
        world.run()
    world.add("again", [*range(29), 99], max_tokens=1)
    assert world.admissions("again") == [0]
    assert lost(world) == {"window": 28}


def test_a_group_alone_loses_nothing() -> None:
    world = world_of(STATE)
    for name in ("first", "second"):
        world.add(name, [*range(9), ord(name[0])], max_tokens=1)
        world.run()
    assert lost(world) == {}


def test_the_first_chunk_is_no_longer_than_the_blocks_that_were_given_for_it_whoever_comes_next() -> None:
    states = CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=96, decode_interval=96))
    world = World(groups=(FULL, states), max_num_seqs=1)
    beginning = list(range(12))
    prompts = {"old": [*beginning[:8], 50] * 2, "own": [*beginning, 60, 61], "next": [*beginning, 70, 71]}
    world.add("old", prompts["old"])
    world.run()
    steps = len(world.runner.plans)
    for name in ("own", "next"):
        world.add(name, prompts[name])
    world.run()
    first = [chunk for plan in world.runner.plans[steps:] for chunk in plan.chunks]
    assert [(each.start, each.length) for each in first[:2]] == [(0, 8), (8, 4)]
    for name, prompt in prompts.items():
        assert world.answer(name).token_ids == oracle(prompt, 8)
