"""What a server says of itself, as it comes over the wire, followed also when the server is gone and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import attrs
import httpx
import msgspec

from nanoserve.entrypoints.client.address import Address
from nanoserve.entrypoints.client.openai_server import unreachable
from nanoserve.entrypoints.client.protocol import (
    MOST_EVENT_BYTES,
    EventReader,
    ProtocolError,
    ServerRefusedError,
    UnreachableError,
    refusal,
)

PATH: Final = "/live"
CONNECT_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 15.0
"""A server that says nothing for so long is gone: a living one sends its status at least every few seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0


class LatencyQuantiles(msgspec.Struct, frozen=True):
    """Seconds that half, and all but one in a hundred, stay below."""

    p50: float
    p99: float


class BlockCounts(msgspec.Struct, frozen=True):
    """Of the KV cache; cached ones hold a prefix that can be found, and are free as well."""

    total: int = 0
    free: int = 0
    cached: int = 0


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One `status` event of `/live`; counters go on over restarts of the engine. What is unknown is ignored."""

    status: str
    draining: bool = False
    restarts: int = 0
    running: int = 0
    waiting: int = 0
    finished: dict[str, int] = {}
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    blocks: BlockCounts = BlockCounts()
    steps: int = 0
    ttft: LatencyQuantiles | None = None
    itl: LatencyQuantiles | None = None
    viewers: int = 0

    @property
    def state(self) -> str:
        """The engine's, in a word; a server that takes nothing new any more is draining."""
        return "draining" if self.draining and self.status == "ready" else self.status

    @property
    def kv_use(self) -> float:
        """The fraction of blocks that a sequence holds, 0 to 1."""
        total = self.blocks.total
        return 1 - self.blocks.free / total if total else 0.0

    @property
    def prefix_hit_rate(self) -> float | None:
        """The fraction of prompt tokens that were found in the cache, of those looked up."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else None


class ServerDescription(msgspec.Struct, frozen=True):
    """What the server says of itself beside its status; empty where it does not."""

    models: list[str] = []
    engine: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The model, and what computes it."""
        parts = (self.models[:1], [self.engine.get("device")], [self.engine.get("dtype")])
        return ", ".join(str(each) for part in parts for each in part if each)


def read_status(data: bytes) -> ServerStatus:
    """The content of a `status` event. Raises `ProtocolError`."""
    try:
        return msgspec.json.decode(data, type=ServerStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the server's status cannot be read ({error}); is it of another release?"
        raise ProtocolError(message) from None


def read_server(body: bytes) -> ServerDescription:
    """The answer of `/server_info`; empty where it is something else."""
    try:
        return msgspec.json.decode(body, type=ServerDescription)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerDescription()


@attrs.frozen
class ServerLost:
    """The server cannot be reached at the moment; tried again after `pause` seconds."""

    reason: str
    pause: float


ServerUpdate = ServerStatus | ServerDescription | ServerLost


async def follow(address: Address) -> AsyncGenerator[ServerUpdate]:
    """Every update of the server, without end; where it is lost, tries again with growing pauses.

    Raises `UnreachableError` where it could not be reached in the first place, and `ServerRefusedError` or
    `ProtocolError` where it is there and has no statuses for us.
    """
    was_there, pause = False, FIRST_PAUSE
    while True:
        try:
            async with contextlib.aclosing(_connection(address)) as updates:
                async for update in updates:
                    was_there, pause = True, FIRST_PAUSE
                    yield update
            reason = f"{address.url} closed the connection"
        except UnreachableError as error:
            if not was_there:
                raise
            reason = str(error)
        yield ServerLost(reason, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _connection(address: Address) -> AsyncGenerator[ServerStatus | ServerDescription]:
    timeout = httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS)
    headers = address.headers | {"accept": "text/event-stream"}
    with unreachable(address):
        async with (
            httpx.AsyncClient(timeout=timeout, trust_env=False) as client,
            client.stream("GET", address.url + PATH, params={"steps": "false"}, headers=headers) as answer,
        ):
            await _check(answer, address)
            async with client.stream("GET", address.url + "/server_info", headers=headers) as about:
                yield read_server(await _beginning(about))
            async for status in _statuses(answer):
                yield status


async def _statuses(answer: httpx.Response) -> AsyncIterator[ServerStatus]:
    events = EventReader()
    async for piece in answer.aiter_bytes():
        for name, data in events.feed(piece):
            if name == b"status":
                yield read_status(data)


async def _beginning(answer: httpx.Response) -> bytes:
    """The body, or the beginning of one that is too long."""
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MOST_EVENT_BYTES:
            break
    return body


async def _check(answer: httpx.Response, address: Address) -> None:
    """Refuse an answer that is no stream of events; a server that is only busy may be tried again."""
    status = answer.status_code
    if status == httpx.codes.NOT_FOUND:
        message = f"there is no {PATH} at {address.url}: the server runs with --no-ui, or is not nanoserve"
        raise ServerRefusedError(message, status)
    if status != httpx.codes.OK:
        refused = refusal(status, await _beginning(answer))
        is_busy = status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS
        raise UnreachableError(str(refused)) if is_busy else refused
    kind = answer.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise ProtocolError(f"{address.url}{PATH} is no stream of events but {kind or 'of no type'}")
