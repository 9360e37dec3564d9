"""Reads the KV events of one engine, from the first that its replay socket still has, and through its restarts.

Numbers alone do not say that an engine is another one. Its connection does: when it ends, all that was known is void, and when there is
one again, everything is read from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from nanoserve.ports.kv import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx", "kv_cache_spec_kind"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_KINDS: Final = {None, "full_attention", "mla_attention"}
_TIERS: Final[Mapping[str | None, Tier]] = {None: "device", "GPU": "device", "CPU": "host"}


class _Stored(msgspec.Struct):
    """The fields of a `BlockStored` that are read."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]


def decode_batch(batch: bytes) -> list[KVEvent]:
    """The events that count; those of a kind that is not known are left out.

    Raises `msgspec.DecodeError`, `LookupError`, `RecursionError`, `TypeError` or `ValueError` where it is no batch.
    """
    _, events, *_ = msgspec.msgpack.decode(batch)
    return list(_events(map(_named, events)))


def _named(event: Any) -> Mapping[str, Any]:
    if isinstance(event, Mapping):
        return event
    kind, *values = event
    return {"type": kind, **dict(zip(_FIELDS.get(kind, ()), values, strict=False))}


def _events(events: Iterator[Mapping[str, Any]]) -> Iterator[KVEvent]:
    for event in events:
        tier = _TIERS.get(event.get("medium"))
        if tier is None:
            continue
        group = msgspec.convert(event.get("group_idx"), int | None) or 0
        if event["type"] == "AllBlocksCleared":
            yield AllBlocksCleared()
        elif event["type"] == "BlockRemoved":
            yield BlockRemoved(group, msgspec.convert(event["block_hashes"], tuple[BlockHash, ...]), tier)
        elif event["type"] == "BlockStored" and _is_plain(event):
            stored = msgspec.convert(event, _Stored)
            names = stored.parent_block_hash, stored.block_hashes
            yield BlockStored(group, *names, stored.token_ids, tier)


def _is_plain(event: Mapping[str, Any]) -> bool:
    """True if every prompt that begins with these tokens finds these blocks."""
    is_adapted = event.get("lora_id") is not None or event.get("lora_name") is not None
    has_keys = any(event.get("extra_keys") or ())
    return not is_adapted and not has_keys and event.get("kv_cache_spec_kind") in _KINDS


_REPLAY_SECONDS: Final = 2.0
"""How long the next batch of a replay is waited for."""
_PAUSE_SECONDS: Final = 1.0
"""Between a failure and the next attempt to follow."""
_END: Final = (-1).to_bytes(8, signed=True)


class KVEventSubscriber:
    """Hands on the events of the engine at `endpoint`, in order; where some are lost, `AllBlocksCleared` comes first.

    Without a replay endpoint, what was published before the connection stood, or was dropped, is not known.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str | None, on_events: Callable[[Iterable[KVEvent]], None]
    ) -> None:
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._on_events = on_events
        self._next: int | None = None

    async def run(self) -> None:
        """Read until cancelled; after an error everything is forgotten and read from the beginning."""
        while True:
            try:
                await self._follow()
            except Exception:  # noqa: BLE001 - whatever a publisher sends, it is followed further
                structlog.get_logger().exception("KV events could not be followed", at=self._endpoint)
                self._forget()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        context = zmq.asyncio.Context()
        try:
            events = context.socket(zmq.SUB)
            events.subscribe(b"")
            monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            events.connect(self._endpoint)
            poller = zmq.asyncio.Poller()
            for socket in (monitor, events):
                poller.register(socket, zmq.POLLIN)
            while True:
                ready = dict(await poller.poll())
                if monitor in ready:
                    message = await recv_monitor_message(monitor)
                    self._forget()
                    if message["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                        await self._replay(context, 0)
                else:
                    _, number, batch = await events.recv_multipart()
                    await self._take(context, int.from_bytes(number), batch)
        finally:
            context.destroy(linger=0)

    def _forget(self) -> None:
        self._on_events([AllBlocksCleared()])
        self._next = None

    async def _take(self, context: zmq.asyncio.Context, number: int, batch: bytes) -> None:
        if self._next is not None and number > self._next:
            await self._replay(context, self._next)
        if self._next is None or number >= self._next:
            self._apply(number, batch)

    def _apply(self, number: int, batch: bytes) -> None:
        if self._next is not None and number > self._next:
            self._on_events([AllBlocksCleared()])
        self._next = number + 1
        try:
            events = decode_batch(batch)
        except (msgspec.DecodeError, LookupError, RecursionError, TypeError, ValueError) as error:
            structlog.get_logger().warning(
                "a batch of KV events cannot be read", at=self._endpoint, reason=str(error)
            )
        else:
            self._on_events(events)

    async def _replay(self, context: zmq.asyncio.Context, first: int) -> None:
        """Apply kept events from a number on; missing ones are lost."""
        if self._replay_endpoint is None:
            return
        with context.socket(zmq.DEALER) as asking, contextlib.suppress(TimeoutError):
            asking.set(zmq.LINGER, 0)
            asking.connect(self._replay_endpoint)
            await asking.send_multipart((b"", first.to_bytes(8)))
            while True:
                async with asyncio.timeout(_REPLAY_SECONDS):
                    _, number, batch = await asking.recv_multipart()
                if number == _END:
                    return
                self._apply(int.from_bytes(number), batch)
