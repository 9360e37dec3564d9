"""A server that says what a test wants on `/live`, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import attrs

from tests.unit.entrypoints.in_thread import in_thread

COMMON = {"draining": False, "open": True, "at": 1.0, "viewers": 1}


@attrs.define
class StatusServer:
    """Sends `statuses` to whoever comes, `period` seconds apart, the last one again and again.

    Attributes:
        key: what requests must show.
        refuse: a status and a message instead of a stream.
        hang_up: close the connection after so many statuses.
        endless: send this again and again instead of statuses.
        asked: paths with their queries.
    """

    statuses: list[dict[str, Any]]
    period: float = 0.05
    key: str | None = None
    refuse: tuple[int, str] | None = None
    hang_up: int | None = None
    endless: bytes = b""
    kind: str = "text/event-stream; charset=utf-8"
    port: int = 0
    asked: list[str] = attrs.field(factory=list)
    _talks: set[asyncio.Task[None]] = attrs.field(factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        for each in self._talks:
            each.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head.split()[1])
            await self._answer(head, writer)
            await writer.drain()
        writer.close()
        self._talks.discard(task)

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        if self.key and f"authorization: bearer {self.key}" not in head.lower():
            _send(writer, 401, {"error": {"message": "who are you?"}})
        elif self.refuse is not None:
            _send(writer, self.refuse[0], {"error": {"message": self.refuse[1]}})
        elif head.split()[1].startswith("/server_info"):
            _send(writer, 200, {"models": ["tiny"], "engine": {"device": "cpu", "dtype": "float32"}})
        else:
            await self._stream(writer)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {self.kind}\r\nconnection: close\r\n\r\n: hello\n\n"
        writer.write(head.encode())
        while self.endless:
            writer.write(self.endless * 1000)
            await writer.drain()
        for number in range(1_000_000):
            if number == self.hang_up:
                return
            status = COMMON | self.statuses[min(number, len(self.statuses) - 1)]
            writer.write(b"event: status\ndata: " + json.dumps(status).encode() + b"\n\n")
            await writer.drain()
            await asyncio.sleep(self.period)


def _send(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)


@contextlib.contextmanager
def status_server(*statuses: dict[str, Any], **behaviour: Any) -> Iterator[StatusServer]:
    """Runs until the block ends."""
    with running(StatusServer(list(statuses), **behaviour)) as served:
        yield served


@contextlib.contextmanager
def running(served: StatusServer) -> Iterator[StatusServer]:
    """One that was made before, on its port if it has one already."""
    with in_thread(served.serve):
        yield served
