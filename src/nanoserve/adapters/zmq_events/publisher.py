"""Publishes KV events from a thread of its own: the engine's thread only appends to a queue.

A message has three frames: the topic, a sequence number (8 bytes, big-endian) and a batch. A subscriber that is slow or away costs
nothing: what its queue does not take is dropped, it sees a gap in the numbers, and asks the replay socket for what it missed. That is
a ROUTER: who sends it a number gets every batch from there on that is still kept, as number and batch, and -1 at the end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

import attrs
import structlog
import zmq

from nanoserve.adapters.zmq_events.encoding import EventEncoder
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import KVEvent

KEPT_BATCHES: Final = 10_000
"""Batches that can be replayed, and that may wait for one slow subscriber."""
_PERIOD: Final = 0.01
"""Seconds between two batches: events in between are joined."""
_PATIENCE: Final = 5.0
"""Seconds in which the port must be free: an engine that takes the place of a dead one may come before the port is given back."""
_END: Final = (-1).to_bytes(8, signed=True)


@attrs.frozen(kw_only=True)
class Place:
    """Where to publish; port 0 takes a free one. Without a replay port nothing is replayed."""

    host: str = "127.0.0.1"
    port: int
    replay_port: int | None = None
    topic: str = ""


class ZmqKVEvents:
    """Fulfils `KVEventPublisher`. Bound when it is made; sends from `start` on.

    Attributes:
        endpoint, replay_endpoint: where subscribers connect to.

    Raises `BadValueError` if a port cannot be had within `patience` seconds.
    """

    def __init__(
        self, place: Place, encoder: EventEncoder, *, patience: float = _PATIENCE, kept: int = KEPT_BATCHES
    ) -> None:
        self._encoder = encoder
        self._topic = place.topic.encode()
        self._waiting: deque[Iterator[KVEvent]] = deque()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=kept)
        self._next = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="KV events", daemon=True)
        self._context = zmq.Context()
        self._publisher = self._socket(zmq.PUB, kept)
        self._replay = None if place.replay_port is None else self._socket(zmq.ROUTER, 2 * kept)
        self.replay_endpoint: str | None = None
        try:
            self.endpoint = _bind(self._publisher, place.host, place.port, "kv_events_port", patience)
            if self._replay is not None and place.replay_port is not None:
                where = place.host, place.replay_port, "kv_events_replay_port"
                self.replay_endpoint = _bind(self._replay, *where, patience)
        except BadValueError:
            self._context.destroy()
            raise

    def publish(self, events: Iterator[KVEvent], /) -> None:
        self._waiting.append(events)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._context.destroy()

    def send(self) -> None:
        """Send waiting events as one batch; the thread repeats this."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        batch = self._encoder.encode(chain.from_iterable(waiting))
        if batch is None:
            return
        number = self._next.to_bytes(8)
        self._next += 1
        self._kept.append((number, batch))
        self._publisher.send_multipart((self._topic, number, batch), zmq.DONTWAIT)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if self._replay is None:
                    self._closing.wait(_PERIOD)
                elif self._replay.poll(round(_PERIOD * 1000)):
                    self._answer(self._replay)
                self.send()
            except Exception:  # noqa: BLE001 - consumers see a gap; the engine must not notice
                structlog.get_logger().exception("KV events could not be sent")

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        client, *_, first = replay.recv_multipart()
        for number, batch in self._kept:
            if number >= first:  # eight bytes each, so they compare as the numbers do
                replay.send_multipart((client, b"", number, batch))
        replay.send_multipart((client, b"", _END, b""))

    def _socket(self, kind: int, most_waiting: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.set(zmq.LINGER, 0)
        made.set(zmq.SNDHWM, most_waiting)
        return made


def _bind(socket: zmq.Socket[bytes], host: str, port: int, setting: str, patience: float) -> str:
    is_ipv6 = ":" in host
    socket.set(zmq.IPV6, is_ipv6)
    address = f"tcp://[{host}]:{port}" if is_ipv6 else f"tcp://{host}:{port}"
    give_up = time.monotonic() + patience
    while True:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > give_up:
                message = f"cannot publish on {address}: {error.strerror}; choose another port or address"
                raise BadValueError(setting, message) from None
            time.sleep(0.1)
        else:
            bound: str = socket.get_string(zmq.LAST_ENDPOINT)
            return bound
