"""Planning costs what changes, counted in function calls, not in seconds; and the dead are forgotten."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from nanoserve.domain.scheduling.queue import LazyHeap
from nanoserve.domain.sequence import Sequence
from tests.unit.domain.world import World


def function_calls(act: Callable[[], object]) -> int:
    """How many Python and C functions are called: a measure of work that no clock disturbs."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()  # a collection runs callbacks, which would be counted
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def steady_world(num_waiting: int, *, num_blocks: int, rows: int) -> World:
    world = World(
        max_num_seqs=rows, max_num_batched_tokens=64, num_blocks=num_blocks, max_model_len=400, block_size=16
    )
    world.add("a", range(20), max_tokens=300)
    world.add("b", range(20, 40), max_tokens=300)
    for _ in range(3):
        world.turn()
    for number in range(num_waiting):
        world.add(f"w{number}", range(64), max_tokens=100)
    return world


def work_of_a_step(world: World) -> int:
    scheduler = world.scheduler
    work = 0
    for _ in range(3):
        plan = None

        def step() -> None:
            nonlocal plan
            plan = scheduler.plan()

        work = function_calls(step)
        assert plan is not None
        result = world.runner.collect(world.runner.submit(plan))
        scheduler.commit(result)
    return work


@pytest.mark.parametrize(("num_blocks", "rows"), [(100, 2), (27, 8)])
def test_planning_costs_the_same_however_many_wait(num_blocks: int, rows: int) -> None:
    few, many = (steady_world(count, num_blocks=num_blocks, rows=rows) for count in (1, 10_000))
    if rows > 2:
        for world in (few, many):
            pool = world.scheduler.cache.allocators[0]
            pool.allocate(pool.num_free - 3)
    assert work_of_a_step(few) == work_of_a_step(many)


def test_a_steady_step_costs_the_same_for_few_rows_and_many() -> None:
    work = []
    for rows in (4, 64):
        world = World(
            max_num_seqs=65, max_num_batched_tokens=512, num_blocks=900, max_model_len=64, block_size=64
        )
        for number in range(rows):
            world.add(f"r{number}", range(number, number + 3), max_tokens=50)
        for _ in range(4):
            world.turn()
        work.append(work_of_a_step(world))
    assert work[0] == work[1]


@pytest.mark.parametrize("blocked", [False, True])
def test_the_aborted_are_forgotten_even_behind_a_blocked_head(blocked: bool) -> None:
    world = World(max_num_seqs=1 if blocked else 8, num_blocks=64, paranoid=False)
    world.add("a", range(4), max_tokens=60, deadline=99.0)
    world.turn()
    world.add("head", range(4), max_tokens=60)
    for number in range(4_000):
        world.add(f"w{number}", (1, 2, 3), deadline=50.0, queue_timeout=40.0)
    for number in range(4_000):
        world.engine.abort(f"w{number}")
    world.turn()
    gc.collect()
    alive = [each for each in gc.get_objects() if isinstance(each, Sequence)]
    assert sum(each.token_ids == [1, 2, 3] for each in alive) < 400


def test_a_lazy_heap_gives_the_living_in_order() -> None:
    dead: set[int] = set()
    heap = LazyHeap[int](lambda item: item not in dead)
    for item in range(500):
        heap.push((item * 7) % 10, item)
    for item in range(0, 500, 2):
        dead.add(item)
        heap.note_death()
    out = []
    while (entry := heap.peek()) is not None:
        assert heap.pop() == entry[1]
        out.append(entry)
    assert out == sorted(out)
    assert {item for _, item in out} == set(range(1, 500, 2))
