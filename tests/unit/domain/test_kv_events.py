"""What is told of the prefix cache, by example; `test_state_machine.py` holds it against the books after random traffic."""

from __future__ import annotations

import attrs
import pytest

from nanoserve.domain.kv.event_log import EventLog
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from nanoserve.ports.model_spec import CacheGroup, Window
from nanoserve.ports.steering import PauseMode, WeightsFacts
from tests.fakes.counting_store import CountingStore
from tests.unit.domain.kv_event_reader import KVEventReader
from tests.unit.domain.world import FULL, World


def told(world: World, reader: KVEventReader) -> list[KVEvent]:
    """The events since the last call."""
    world.run()
    reader.held(0)
    seen, reader.seen = reader.seen, []
    return seen


def test_a_prompt_is_told_in_one_piece_and_its_answer_as_it_grows() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader)
    world.add("a", range(9), max_tokens=5)
    first, second = told(world, reader)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent, first.token_ids) == (None, tuple(range(8)))
    assert (second.parent, second.token_ids[0]) == (first.block_hashes[1], 8)
    world.add("b", range(9), max_tokens=5)
    assert told(world, reader) == []


def test_a_block_whose_twin_lives_is_not_told_again_nor_removed() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader, max_num_batched_tokens=64)
    for name in "ab":  # in one step, so that each computes the prompt
        world.add(name, range(9), max_tokens=2)
    assert [type(event) for event in told(world, reader)] == [BlockStored]


def test_what_is_read_late_has_the_names_that_it_had_under_weights_of_then() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader, weight_store=CountingStore())
    world.add("a", range(9), max_tokens=20)
    for _ in range(8):
        world.turn()
    world.engine.pause(PauseMode.KEEP)
    world.run()
    world.engine.write_weights(WeightsFacts(version=1, digest="new"))
    (prompt, *_, removed, cleared) = told(world, reader)
    assert isinstance(prompt, BlockStored)
    assert isinstance(removed, BlockRemoved)
    assert prompt.token_ids == tuple(range(8))
    assert removed.block_hashes[:2] == prompt.block_hashes
    assert cleared == AllBlocksCleared()


def test_eviction_and_forgetting_are_told_by_name() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader, num_blocks=4, max_model_len=16)
    world.add("a", range(9), max_tokens=2)
    (stored,) = told(world, reader)
    assert isinstance(stored, BlockStored)
    world.add("b", range(100, 112), max_tokens=1)
    removed, again = told(world, reader)
    assert removed == BlockRemoved(0, (stored.block_hashes[1],))  # what follows goes before what it follows
    assert isinstance(again, BlockStored)
    world.engine.forget_prefixes()
    assert told(world, reader) == [
        BlockRemoved(0, (stored.block_hashes[0], *again.block_hashes)),
        AllBlocksCleared(),
    ]


def test_what_host_memory_keeps_and_loses_is_told_with_its_tokens() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader, num_blocks=6, max_model_len=16, host_slots=3, min_offload_tokens=4)
    world.add("a", range(9), max_tokens=1)
    stored, kept = told(world, reader)
    assert isinstance(stored, BlockStored)
    assert kept == attrs.evolve(stored, tier="host")
    world.add("b", range(100, 109), max_tokens=1)
    events = [each for each in told(world, reader) if isinstance(each, BlockRemoved) and each.tier == "host"]
    assert events == [BlockRemoved(0, (kept.block_hashes[1],), "host")]  # what follows goes first, here, too


def test_every_cache_group_is_told_apart() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader, groups=(FULL, CacheGroup(layers=(2,), kind=Window(5))))
    world.add("a", range(9), max_tokens=2)
    full, window = told(world, reader)
    assert isinstance(full, BlockStored)
    assert isinstance(window, BlockStored)
    assert (full.group, window.group) == (0, 1)
    assert full.block_hashes[-len(window.block_hashes) :] == window.block_hashes


def test_of_salted_prompts_only_the_names_are_told() -> None:
    reader = KVEventReader(4)
    world = World(kv_events=reader)
    world.add("a", range(9), max_tokens=2, cache_salt="secret")
    (stored,) = told(world, reader)
    assert isinstance(stored, BlockStored)
    assert (len(stored.block_hashes), stored.token_ids) == (2, ())


def test_without_prefix_caching_there_is_nothing_to_tell() -> None:
    with pytest.raises(BadValueError, match="needs prefix caching"):
        World(kv_events=KVEventReader(4), prefix_caching=False)


def test_a_block_that_was_known_already_parts_what_is_told() -> None:
    world = World()
    world.add("a", range(20))
    sequence = world.scheduler.table.requests["a"][0]
    names = world.scheduler.cache.hashes(sequence, 4)
    log = EventLog(4)
    log.note_stored(sequence, [(0, 0), (0, 1), (0, 3)])
    events = log.take()
    assert events is not None
    assert list(events) == [
        BlockStored(0, None, tuple(names[:2]), tuple(range(8))),
        BlockStored(0, names[2], (names[3],), tuple(range(12, 16))),
    ]
