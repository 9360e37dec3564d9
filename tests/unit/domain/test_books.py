from __future__ import annotations

from nanoserve.ports.model_spec import CacheGroup, Window
from tests.unit.domain.world import FULL, World

WINDOWED = CacheGroup(layers=(2,), kind=Window(8))


def test_the_state_counts_running_and_waiting_sequences() -> None:
    world = World(max_num_seqs=2, num_blocks=64)
    for number in range(5):
        world.add(f"r{number}", [number] * 10, max_tokens=20)
    assert world.engine.state().waiting_tokens == 50
    world.turn()
    state = world.engine.state()
    assert (state.accepted, state.running, state.waiting, state.waiting_tokens) == (5, 2, 3, 30)
    assert state.accepted == sum(state.finished.values()) + state.running + state.waiting
    assert state.at == world.clock.time
    assert state.last_step == world.clock.time
    assert state.free_blocks == world.free_blocks[0] < 64
    world.run()
    state = world.engine.state()
    assert state.finished["length"] == 5
    assert (state.running, state.waiting, state.waiting_tokens) == (0, 0, 0)
    assert (state.prompt_tokens, state.generated_tokens) == (50, 100)


def test_a_request_for_several_answers_is_one_request() -> None:
    world = World(max_num_seqs=2)
    world.add("a", range(10), n=3, max_tokens=20)
    for name in "bc":
        world.add(name, range(10), n=2, max_tokens=20)
    for _ in range(4):
        world.turn()
    state = world.engine.state()
    assert (state.running, state.waiting) == (2, 5)
    assert (state.running_requests, state.waiting_requests) == (1, 2)
    world.engine.abort("c")
    world.run()
    state = world.engine.state()
    assert (state.running_requests, state.waiting_requests, state.finished["length"]) == (0, 0, 5)
    assert (state.finished_requests["length"], state.finished_requests["abort"]) == (2, 1)


def test_an_engine_that_never_stepped_was_last_seen_when_it_became_ready() -> None:
    world = World()
    world.clock.time = 4.0
    world.engine.start_counting()
    world.clock.time = 9.0
    assert world.engine.state().last_step == 4.0


def test_prefix_hits_and_kept_blocks_are_in_the_books() -> None:
    world = World()
    for name in ("first", "second"):
        world.add(name, range(17), max_tokens=1)
        world.run()
    state = world.engine.state()
    assert (state.prefix_queries, state.prefix_hits) == (34, 16)
    assert state.cached_blocks == 4
    assert state.free_blocks == 64


def test_a_preempted_sequence_waits_with_its_prompt() -> None:
    world = World(num_blocks=8, max_num_seqs=2)
    for name, first in (("old", 0), ("young", 100)):
        world.add(name, range(first, first + 10), max_tokens=20)
    while not world.preemptions:
        world.turn()
    state = world.engine.state()
    assert (state.running, state.waiting, state.waiting_tokens, state.preemptions) == (1, 1, 10, 1)


def test_a_block_that_no_table_holds_is_leaked() -> None:
    world = World(groups=(FULL, WINDOWED))
    world.add("first", range(30), max_tokens=30)
    world.add("same", range(30), max_tokens=30)
    for _ in range(12):
        world.turn()
        assert world.engine.state(count_leaks=True).leaked_blocks == 0
    world.scheduler.cache.allocators[1].allocate(3)
    assert world.engine.state(count_leaks=True).leaked_blocks == 3


def test_counting_restarts_after_a_warm_up() -> None:
    world = World()
    world.add("warm-up", range(10), max_tokens=2)
    world.run()
    world.engine.start_counting()
    state = world.engine.state()
    assert (state.accepted, sum(state.finished.values()), state.steps, state.prefix_queries) == (0, 0, 0, 0)
    assert state.cached_blocks == 0
    world.add("next", range(10), max_tokens=2)
    world.run()
    assert world.engine.state().accepted == 1
