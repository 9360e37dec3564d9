"""Follows a server's statuses, and goes on when the server comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import attrs
import httpx

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
from nanoserve.entrypoints.client.top.status import ServerDescription, ServerStatus, read_server, read_status

PATH: Final = "/live"
CONNECT_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 15.0
"""A server that says nothing for so long is gone: a living one sends its status at least every few seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0


@attrs.frozen
class ServerLost:
    """The server cannot be reached at the moment; tried again after `pause` seconds."""

    reason: str
    pause: float


ServerUpdate = ServerStatus | ServerDescription | ServerLost


async def follow(address: Address) -> AsyncGenerator[ServerUpdate]:
    """Whatever the server says, for ever; where it is lost, tries again with growing pauses.

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
