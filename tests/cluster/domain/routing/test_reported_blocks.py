from __future__ import annotations

import random

from nanoserve.ports.kv import AllBlocksCleared, BlockRemoved, BlockStored
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex, block_names
from nanoserve_cluster.domain.routing.reported_blocks import ReportedBlocks
from tests.unit.domain.kv_event_reader import KVEventReader
from tests.unit.domain.world import World

REPLICA = 3


def matched(index: PrefixIndex, prompt: tuple[int, ...]) -> int:
    return index.matches(block_names(prompt, 4)).get(REPLICA, 0)


def test_the_index_finds_what_the_engine_would_find_through_evictions_and_restarts() -> None:
    index, draw = PrefixIndex(1000), random.Random(5)
    prompts = [tuple(draw.choices(range(3), k=draw.randint(4, 24))) for _ in range(30)]
    reported = ReportedBlocks(REPLICA, index, 4)
    for _ in range(2):
        reader = KVEventReader(4)
        world = World(kv_events=reader, num_blocks=20, max_model_len=32)
        for number, prompt in enumerate(prompts * 2):
            world.add(str(number), prompt, max_tokens=1)
            world.run()
            held, events = reader.held(0), reader.seen
            reader.seen = []
            for event in events:
                reported.apply(event)
            assert len(index) == len(held)
            assert matched(index, prompt) == len(prompt) // 4
        reported.apply(AllBlocksCleared())
        assert len(index) == 0


def test_names_are_the_replicas_own_and_are_kept_apart_by_group() -> None:
    index = PrefixIndex(100)
    reported = ReportedBlocks(REPLICA, index, 4)
    reported.apply(BlockStored(0, None, (b"x", b"y"), tuple(range(8))))
    reported.apply(BlockStored(0, b"y", (b"z",), tuple(range(8, 12))))
    assert matched(index, tuple(range(12))) == 3
    reported.apply(BlockRemoved(1, (b"z", b"y")))
    assert matched(index, tuple(range(12))) == 3
    reported.apply(BlockRemoved(0, (b"z",)))
    assert matched(index, tuple(range(12))) == 2


def test_a_block_is_found_until_the_last_tier_has_lost_it() -> None:
    index = PrefixIndex(100)
    reported = ReportedBlocks(REPLICA, index, 4)
    reported.apply(BlockStored(0, None, (1, 2), tuple(range(8))))
    reported.apply(BlockStored(0, None, (1,), tuple(range(4)), "host"))
    # The block before is on the device alone.
    reported.apply(BlockStored(0, 2, (3,), tuple(range(8, 12)), "host"))
    assert matched(index, tuple(range(12))) == 3
    reported.apply(BlockRemoved(0, (2, 1)))
    assert matched(index, tuple(range(12))) == 1
    reported.apply(BlockRemoved(0, (1, 3), "host"))
    assert len(index) == 0


def test_what_does_not_fit_is_left_out() -> None:
    index = PrefixIndex(100)
    reported = ReportedBlocks(REPLICA, index, 4)
    reported.apply(BlockStored(0, 77, (1,), tuple(range(4))))  # its parent is not known
    reported.apply(BlockStored(0, None, (2,), tuple(range(5))))  # blocks of another size
    reported.apply(BlockStored(0, None, (3,), ()))  # a prompt with a salt
    assert len(index) == 0


def test_the_oldest_of_too_many_names_are_forgotten() -> None:
    index = PrefixIndex(100)
    reported = ReportedBlocks(REPLICA, index, 4, most_names=2)
    for number in range(5):
        reported.apply(BlockStored(0, None, (number,), (number,) * 4))
    assert [matched(index, (number,) * 4) for number in range(5)] == [0, 0, 0, 1, 1]
