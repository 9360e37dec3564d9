"""KV events over real sockets: nothing is lost that can be asked for again, and nobody who listens holds up the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from nanoserve.adapters.zmq_events.encoding import EventEncoder
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockStored
from nanoserve.ports.model_spec import CacheGroup

zmq = pytest.importorskip("zmq")

from nanoserve.adapters.zmq_events.publisher import Place, ZmqKVEvents  # noqa: E402 - needs zmq

PATIENCE = 30_000
"""Milliseconds that a message may take on a busy machine."""
Open = Callable[..., ZmqKVEvents]


@pytest.fixture
def publisher_at() -> Iterator[Open]:
    opened: list[ZmqKVEvents] = []

    def opens(**options: Any) -> ZmqKVEvents:
        encoder = EventEncoder([CacheGroup(layers=(0,))], 4, as_arrays=False)
        opened.append(ZmqKVEvents(Place(port=0, replay_port=0, topic="kv@pod@m"), encoder, **options))
        return opened[-1]

    yield opens
    for each in opened:
        each.close()


@pytest.fixture
def context() -> Iterator[Any]:
    with zmq.Context() as made:
        made.linger = 0
        yield made


def publish(publisher: ZmqKVEvents, number: int, length: int = 4) -> None:
    publisher.publish(iter([BlockStored(0, None, (number,), tuple(range(length)))]))


def receive(socket: Any) -> list[bytes]:
    assert socket.poll(PATIENCE), "no message came"
    frames: list[bytes] = socket.recv_multipart()
    return frames


def replayed(context: Any, publisher: ZmqKVEvents, first: int) -> dict[int, bytes]:
    """What the replay socket still has, from a number on."""
    found = {}
    with context.socket(zmq.DEALER) as asking:
        asking.connect(publisher.replay_endpoint)
        asking.send_multipart((b"", first.to_bytes(8)))
        while (frames := receive(asking))[1] != (-1).to_bytes(8, signed=True):
            found[int.from_bytes(frames[1])] = frames[2]
    return found


def names(batch: bytes) -> list[int]:
    return [name for event in msgspec.msgpack.decode(batch)[1] for name in event["block_hashes"]]


def test_a_subscriber_that_comes_late_gets_a_thousand_batches_again(publisher_at: Open, context: Any) -> None:
    publisher = publisher_at()
    for number in range(1000):
        publish(publisher, number)
        publisher.send()
    with context.socket(zmq.SUB) as listening:
        listening.subscribe(b"kv@")
        listening.connect(publisher.endpoint)
        publisher.start()
        number = 1000
        while not listening.poll(20):  # until it has joined
            publish(publisher, number)
            number += 1
        topic, seen, batch = receive(listening)
    assert topic == b"kv@pod@m"
    first = int.from_bytes(seen)
    missed = replayed(context, publisher, 0)
    assert list(missed) == list(range(len(missed)))
    assert missed[first] == batch
    assert [name for number in range(1000) for name in names(missed[number])] == list(range(1000))
    assert min(replayed(context, publisher, 990)) == 990


def test_what_a_slow_subscriber_does_not_take_is_a_gap_that_replay_closes(
    publisher_at: Open, context: Any
) -> None:
    publisher = publisher_at(kept=200)
    with context.socket(zmq.SUB) as listening:
        listening.set(zmq.RCVHWM, 1)
        listening.set(zmq.RCVBUF, 4096)
        listening.subscribe(b"")
        listening.connect(publisher.endpoint)
        sent = 0
        while not listening.poll(5):
            publish(publisher, sent)
            publisher.send()
            sent += 1
        for number in range(sent, 1500):  # far more than it, the queues and the system's buffers hold
            publish(publisher, number, length=4000)
            publisher.send()
        publisher.start()
        seen = []
        while listening.poll(200):
            seen.append(int.from_bytes(listening.recv_multipart()[1]))
    assert seen == sorted(set(seen))
    assert len(seen) < 1500 - seen[0]
    assert list(replayed(context, publisher, 0)) == list(range(1300, 1500))


def test_a_malformed_question_harms_nobody(publisher_at: Open, context: Any) -> None:
    publisher = publisher_at()
    publisher.start()
    publish(publisher, 1)
    with context.socket(zmq.DEALER) as asking:
        asking.connect(publisher.replay_endpoint)
        asking.send_multipart((b"", b"", b"what"))
        asking.send(b"")
        assert receive(asking)[1] == (-1).to_bytes(8, signed=True)
    assert set(replayed(context, publisher, 0)) <= {0}


def test_a_port_that_is_taken_is_one_clear_error(publisher_at: Open) -> None:
    port = int(publisher_at().endpoint.rpartition(":")[2])
    encoder = EventEncoder([], 4, as_arrays=False)
    with pytest.raises(BadValueError, match="choose another port") as caught:
        ZmqKVEvents(Place(port=port), encoder, patience=0.0)
    assert caught.value.parameter == "kv_events_port"
