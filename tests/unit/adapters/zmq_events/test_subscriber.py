"""A subscriber over real sockets: it knows what was published before it came, and forgets what an engine that died had."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from nanoserve.adapters.zmq_events.encoding import EventEncoder
from nanoserve.adapters.zmq_events.subscriber import decode_batch
from nanoserve.ports.kv import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from nanoserve.ports.model_spec import CacheGroup, Window
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex
from nanoserve_cluster.domain.routing.reported_blocks import ReportedBlocks
from tests.patience import PATIENCE

pytest.importorskip("zmq")

from nanoserve.adapters.zmq_events import subscriber as subscribing
from nanoserve.adapters.zmq_events.publisher import Place, ZmqKVEvents
from nanoserve.adapters.zmq_events.subscriber import KVEventSubscriber

GROUPS = (CacheGroup(layers=(0,)), CacheGroup(layers=(1,), kind=Window(5)))


def stored(number: int) -> BlockStored:
    return BlockStored(0, None, (number,), tuple(range(4)))


def opened(port: int = 0, replay_port: int | None = 0) -> ZmqKVEvents:
    return ZmqKVEvents(
        Place(port=port, replay_port=replay_port), EventEncoder(GROUPS, 4, as_arrays=False), kept=4
    )


class Listener:
    def __init__(self) -> None:
        self.seen: list[KVEvent] = []
        self._news = asyncio.Event()

    def take(self, events: Iterable[KVEvent]) -> None:
        self.seen.extend(events)
        self._news.set()

    async def until(self, *names: int, patience: float = PATIENCE) -> list[KVEvent]:
        """What has come once the blocks of these names were stored since all were cleared."""
        async with asyncio.timeout(patience):
            while True:
                last = max(
                    (place for place, each in enumerate(self.seen) if each == AllBlocksCleared()), default=-1
                )
                if [
                    each.block_hashes[0] for each in self.seen[last + 1 :] if isinstance(each, BlockStored)
                ] == [*names]:
                    return self.seen
                self._news.clear()
                await self._news.wait()


def port_of(endpoint: str | None) -> int:
    assert endpoint
    return int(endpoint.rpartition(":")[2])


async def published_until_seen(events: ZmqKVEvents, listener: Listener) -> None:
    """Events from the third on: what is sent before a subscription has arrived is told by the next one alone."""
    for last in range(3, 1000):
        events.publish(iter([stored(last)]))
        with contextlib.suppress(TimeoutError):
            await listener.until(*range(1, last + 1), patience=1.0)
            return
    raise AssertionError(listener.seen)


async def test_what_came_before_is_asked_for_and_a_restarted_engine_begins_anew() -> None:
    listener = Listener()
    first = opened()
    ports = port_of(first.endpoint), port_of(first.replay_endpoint)
    for number in (1, 2):
        first.publish(iter([stored(number)]))
        first.send()
    first.start()
    subscriber = KVEventSubscriber(first.endpoint, first.replay_endpoint, listener.take)
    reading = asyncio.create_task(subscriber.run())
    await listener.until(1, 2)
    await published_until_seen(first, listener)
    first.close()
    second = opened(*ports)
    for number in range(7):  # more than the first one had, and more than are kept
        second.publish(iter([stored(10 + number)]))
        second.send()
    second.start()
    await listener.until(13, 14, 15, 16)
    second.close()
    reading.cancel()


def test_without_a_replay_port_a_gap_clears_what_is_known() -> None:
    listener = Listener()
    subscriber = KVEventSubscriber("tcp://127.0.0.1:1", None, listener.take)
    encoder = EventEncoder(GROUPS, 4, as_arrays=True)
    for number in (4, 5, 7):
        batch = encoder.encode([stored(number)])
        assert batch
        asyncio.run(subscriber._take(None, number, batch))  # type: ignore[arg-type]
    asyncio.run(subscriber._take(None, 6, b"late"))  # type: ignore[arg-type]
    assert listener.seen == [stored(4), stored(5), AllBlocksCleared(), stored(7)]


PLAIN: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [b"1"],
    "parent_block_hash": None,
    "token_ids": [1],
    "block_size": 1,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_hashes": [[1]]},
        {"type": "BlockRemoved", "block_hashes": [[1]]},
        {"parent_block_hash": [1]},
        {"token_ids": [[1]]},
        {"group_idx": [1]},
        {"medium": [1]},
    ],
)
def test_a_batch_of_wrong_types_is_left_out_and_reading_goes_on(wrong: dict[str, Any]) -> None:
    reported = ReportedBlocks(0, PrefixIndex(10), 1)
    listener = Listener()

    def take(events: Iterable[KVEvent]) -> None:
        for each in events:
            reported.apply(each)
            listener.take([each])

    subscriber = KVEventSubscriber("tcp://127.0.0.1:1", None, take)
    for number, event in enumerate((PLAIN | wrong, PLAIN)):
        subscriber._apply(number, msgspec.msgpack.encode([0.0, [event], None]))
    assert listener.seen == [BlockStored(0, None, (b"1",), (1,))]


def test_a_batch_that_is_too_deep_is_left_out() -> None:
    listener = Listener()
    KVEventSubscriber("tcp://127.0.0.1:1", None, listener.take)._apply(0, b"\x91" * 5000)
    assert not listener.seen


async def test_what_fails_once_is_forgotten_and_read_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribing, "_PAUSE_SECONDS", 0.0)
    listener = Listener()
    failures = [ValueError("not enough values to unpack")]

    def take(events: Iterable[KVEvent]) -> None:
        came = list(events)
        if stored(2) in came and failures:
            raise failures.pop()
        listener.take(came)

    publisher = opened()
    for number in (1, 2):
        publisher.publish(iter([stored(number)]))
        publisher.send()
    publisher.start()
    subscriber = KVEventSubscriber(publisher.endpoint, publisher.replay_endpoint, take)
    reading = asyncio.create_task(subscriber.run())
    seen = await listener.until(1, 2)
    assert [each for each in seen if isinstance(each, BlockStored)] == [stored(1), stored(1), stored(2)]
    reading.cancel()
    publisher.close()


@pytest.mark.parametrize("as_arrays", [False, True])
def test_batches_are_read_back_but_for_what_says_nothing_of_prompts(as_arrays: bool) -> None:
    window = BlockStored(1, None, (9,), tuple(range(4)))
    batch = EventEncoder(GROUPS, 4, as_arrays=as_arrays).encode(
        [stored(1), window, BlockRemoved(0, (1,)), AllBlocksCleared()]
    )
    assert batch
    assert decode_batch(batch) == [stored(1), BlockRemoved(0, (1,)), AllBlocksCleared()]


@pytest.mark.parametrize(
    "differing",
    [{"medium": "DISK"}, {"lora_id": 3}, {"lora_name": "a"}, {"extra_keys": [["image"]]}, {"type": "New"}],
)
def test_other_tiers_adapters_keys_and_kinds_are_left_out(differing: dict[str, Any]) -> None:
    batch = msgspec.msgpack.encode([0.0, [PLAIN, PLAIN | differing], None])
    assert decode_batch(batch) == [BlockStored(0, None, (b"1",), (1,))]
