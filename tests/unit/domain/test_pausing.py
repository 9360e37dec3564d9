"""A paused engine: what goes on, what stays where it is, what waits, and that nothing is lost."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError, ConflictError
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.request import FinishReason
from nanoserve.ports.steering import PauseMode, WeightsFacts
from tests.fakes.counting_store import CountingStore
from tests.unit.domain.late_copies import LateDirectory
from tests.unit.domain.test_tiers import Will
from tests.unit.domain.world import World, oracle

LONG = 20


def running(depth: int = 1, count: int = 3, **limits: Any) -> World:
    """A world in which so many requests are in the middle of their answers."""
    world = World(depth=depth, **limits)
    for number in range(count):
        world.add(f"r{number}", [number + 1, 5, 7], max_tokens=LONG)
    for _ in range(4):
        world.turn()
    return world


@pytest.mark.parametrize("depth", [1, 2])
def test_keep_brings_home_what_is_in_flight_and_goes_on_where_it_stopped(depth: int) -> None:
    world = running(depth)
    rows = {each.request.request_id: each.row for each in world.scheduler.table.rows.running}
    world.engine.pause(PauseMode.KEEP)
    world.run()
    steps, free = world.scheduler.table.step, world.free_blocks
    assert not world.engine.has_work
    assert world.scheduler.flights == []
    assert {each.request.request_id: each.row for each in world.scheduler.table.rows.running} == rows
    world.add("late", [9, 9], max_tokens=4)
    assert not world.engine.has_work
    assert (world.scheduler.table.step, world.free_blocks) == (steps, free)
    assert world.engine.state().paused
    world.engine.resume()
    world.run()
    assert world.preemptions == 0
    for number in range(3):
        assert world.answer(f"r{number}").token_ids == oracle([number + 1, 5, 7], LONG)
    assert world.answer("late").token_ids == oracle([9, 9], 4)


def test_wait_finishes_what_runs_and_admits_nothing() -> None:
    world = running(count=2, max_num_seqs=2)
    world.add("behind", [3, 3], max_tokens=4)
    world.engine.pause(PauseMode.WAIT)
    world.add("late", [4, 4], max_tokens=4)
    world.run()
    assert [world.answer(f"r{number}").reason for number in range(2)] == [FinishReason.LENGTH] * 2
    assert [world.answer(name).token_ids for name in ("behind", "late")] == [[], []]
    world.engine.resume()
    world.run()
    assert world.answer("behind").token_ids == oracle([3, 3], 4)
    assert world.answer("late").token_ids == oracle([4, 4], 4)


def test_wait_finishes_those_too_that_give_their_blocks_back() -> None:
    world = World(num_blocks=8, max_num_seqs=2)
    world.add("old", [1, 2, 3], max_tokens=LONG)
    world.add("young", [4, 5, 6], max_tokens=LONG)
    world.turn()
    world.engine.pause(PauseMode.WAIT)
    world.add("late", [7], max_tokens=2)
    world.run()
    assert world.preemptions
    assert world.answer("old").token_ids == oracle([1, 2, 3], LONG)
    assert world.answer("young").token_ids == oracle([4, 5, 6], LONG)
    assert world.answer("late").token_ids == []


def test_abort_ends_all_with_what_they_have() -> None:
    world = running(2)
    world.engine.pause(PauseMode.ABORT)
    world.run()
    for number in range(3):
        answer = world.answer(f"r{number}")
        assert answer.reason is FinishReason.ABORT
        assert answer.token_ids
        assert answer.token_ids == oracle([number + 1, 5, 7], LONG)[: len(answer.token_ids)]
    assert world.free_blocks == [64]
    world.add("late", [8], max_tokens=2)
    assert not world.engine.has_work
    world.engine.resume()
    world.run()
    assert world.answer("late").token_ids == oracle([8], 2)


def test_a_paused_engine_frees_who_leaves_and_who_runs_out_of_time() -> None:
    world = running()
    world.add("waits", [9], queue_timeout=5.0)
    world.engine.pause(PauseMode.KEEP)
    world.run()
    kept = world.free_blocks[0]
    world.engine.abort("r1")
    world.run()
    assert world.answer("r1").reason is FinishReason.ABORT
    assert world.free_blocks[0] > kept
    world.clock.time += 10
    assert world.engine.has_work
    world.run()
    assert world.answer("waits").reason is FinishReason.TIMEOUT
    world.engine.resume()
    world.run()
    assert world.answer("r0").token_ids == oracle([1, 5, 7], LONG)


@pytest.mark.parametrize("mode", PauseMode)
def test_pausing_twice_and_resuming_without_a_pause_change_nothing(mode: PauseMode) -> None:
    world = running()
    world.engine.resume()
    world.engine.pause(mode)
    world.run()
    world.engine.pause(mode)
    assert not world.engine.has_work
    stood = [world.engine.steering.paused]
    world.engine.resume()
    world.engine.resume()
    stood.append(world.engine.steering.paused)
    assert stood == [True, False]
    world.run()
    assert world.scheduler.table.requests == {}


PREFIX = list(range(100, 140))


def test_what_old_weights_have_computed_is_found_by_nobody_after_an_update() -> None:
    world = World(weight_store=CountingStore(), num_blocks=128)

    def hits(name: str, prompt: list[int]) -> list[int]:
        world.add(name, prompt, max_tokens=2)
        return world.admissions(name)

    hits("cold", PREFIX)
    assert hits("warm", PREFIX) == [36]
    for version in ("a", "b"):
        world.engine.write_weights(WeightsFacts(version=1, digest=version))
        assert hits(f"first {version}", PREFIX) == [0]
        assert hits(f"second {version}", PREFIX) == [36]


def test_requests_that_are_kept_over_an_update_share_nothing_with_others() -> None:
    world = World(weight_store=CountingStore(), num_blocks=128, max_num_seqs=1)
    world.add("kept", PREFIX, max_tokens=LONG)
    world.add("waits", PREFIX, max_tokens=2)
    for _ in range(6):
        world.turn()
    world.engine.pause(PauseMode.KEEP)
    world.run()
    world.engine.write_weights(WeightsFacts(version=1, digest="new"))
    world.engine.resume()
    found = world.admissions("waits")
    assert found == [0]
    assert world.answer("kept").token_ids == oracle(PREFIX, LONG)
    assert world.answer("waits").token_ids == oracle(PREFIX, 2)


def test_weights_are_not_changed_under_requests_that_run() -> None:
    store = CountingStore()
    world = World(weight_store=store, depth=2)
    world.add("r", [1, 2], max_tokens=LONG)
    for _ in range(3):
        world.turn()
    with pytest.raises(ConflictError, match="pause the engine"):
        world.engine.write_weights(WeightsFacts(version=1))
    world.engine.pause(PauseMode.KEEP)
    with pytest.raises(ConflictError, match="pause the engine"):
        world.engine.write_weights(WeightsFacts(version=1))
    assert store.written == 0
    world.run()
    world.engine.write_weights(WeightsFacts(version=1))
    assert (store.written, world.engine.steering.weights.version) == (1, 1)
    with pytest.raises(BadValueError, match="cannot be updated"):
        World().engine.write_weights(WeightsFacts(version=1))


def names_in_folder(change_at: int | None, after: str = "") -> set[BlockHash]:
    """What a folder holds once two requests of one prompt have ended, the first of which was kept over an update after so many turns."""
    will = Will(0)
    will.value = 0.0
    world = World(
        directory=functools.partial(LateDirectory, dice=will),
        weight_store=CountingStore(),
        host_slots=60,
        min_offload_tokens=8,
        max_num_batched_tokens=8,
    )
    world.add("kept", PREFIX, max_tokens=4)
    for _ in range(change_at or 0):
        world.turn()
    if change_at is not None:
        world.engine.pause(PauseMode.KEEP)
        world.run()
        world.engine.write_weights(WeightsFacts(version=1, digest="new"))
        world.engine.resume()
    world.run()
    if after:
        world.add(after, PREFIX, max_tokens=4)
        world.run()
    assert world.scheduler.cache.tiers is not None
    for _ in range(4):
        world.scheduler.cache.tiers.poll()
    return set(world.directory.blocks)


def test_a_folder_has_no_block_of_new_weights_under_a_name_of_old_ones() -> None:
    old = names_in_folder(None)
    assert len(old) == 10
    assert len(names_in_folder(2)) <= 4  # of what the old weights have computed: the rest has no name
    waited, both = names_in_folder(0), names_in_folder(2, "new")
    assert len(waited) == 10
    assert not waited & old
    assert waited <= both
    assert len(both & old) <= 4


def test_a_sleeping_engine_computes_nothing_until_all_is_awake_and_loses_nobody() -> None:
    world = World(weight_store=CountingStore())
    for number in range(3):
        world.add(f"r{number}", [number + 1, 5, 7], max_tokens=LONG)
    for _ in range(4):
        world.turn()
    world.engine.pause(PauseMode.KEEP)
    world.run()
    with pytest.raises(BadValueError, match="must be 1 or 2"):
        world.engine.sleep(3)
    world.engine.sleep(2)
    with pytest.raises(ConflictError, match="is already asleep"):
        world.engine.sleep(1)
    with pytest.raises(ConflictError, match="the weights are asleep"):
        world.engine.write_weights(WeightsFacts(version=1))
    world.engine.resume()
    world.add("late", [9], max_tokens=2)
    world.run()
    steps = world.scheduler.table.step
    assert (world.engine.has_work, world.free_blocks) == (False, [64])
    assert world.engine.state().paused
    world.engine.note_awake(["weights"])
    world.engine.write_weights(WeightsFacts(version=1))
    assert (world.engine.has_work, world.scheduler.table.step) == (False, steps)
    world.engine.note_awake(["kv_cache"])
    world.run()
    for number in range(3):
        assert world.answer(f"r{number}").token_ids == oracle([number + 1, 5, 7], LONG)
    assert world.answer("late").token_ids == oracle([9], 2)
    assert not world.engine.state().paused
