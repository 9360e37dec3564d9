"""A client over bare sockets, which can do what well-behaved ones cannot: leave at any moment, or not read at all."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import attrs
import httptools

from tests.patience import PATIENCE

_RESET = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class Exchange:
    """One request on a connection of its own, and as much of the answer as was read.

    Attributes:
        sent_at: the clock when the request was written.
        body: what was read of the answer's body.
        complete: whether all of it was.
    """

    sock: socket.socket
    sent_at: float
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytearray = attrs.field(factory=bytearray)
    complete: bool = False
    _parser: Any = None
    _head_is_read: bool = False

    @classmethod
    async def send(
        cls,
        port: int,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        receive_buffer: int | None = None,
    ) -> Exchange:
        """Connect and write the request; POST where there is a body. `receive_buffer` is the kernel's, in bytes."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(sock, ("127.0.0.1", port))
                sent_at = time.monotonic()
                await loop.sock_sendall(sock, request_bytes(path, body))
        except BaseException:
            sock.close()
            raise
        made = cls(sock, sent_at)
        made._parser = httptools.HttpResponseParser(made)
        return made

    async def head(self) -> int:
        """Read up to the end of the headers; the status."""
        while not self._head_is_read:
            await self._read()
        return self.status

    async def whole(self) -> bytes:
        """Read to the end and hang up; the body."""
        try:
            while not self.complete:
                await self._read()
        finally:
            self.close()
        return bytes(self.body)

    async def events(self) -> AsyncIterator[str]:
        """What stands behind each `data: ` as it comes, to the end of the answer."""
        begin = 0
        while True:
            end = self.body.find(b"\n\n", begin)
            if end >= 0:
                event, begin = self.body[begin:end], end + 2
                if event.startswith(b"data: "):
                    yield event[6:].decode()
            elif self.complete:
                return
            else:
                await self._read()

    def close(self, *, reset: bool = False) -> None:
        """Hang up: as programs do that end in order, or as those that crash."""
        if reset and self.sock.fileno() >= 0:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    async def _read(self) -> None:
        async with asyncio.timeout(PATIENCE):
            data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
        if not data:
            raise ConnectionResetError("the server hung up in the middle of an answer")
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()
        self._head_is_read = True

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = True


def request_bytes(path: str, body: Mapping[str, Any] | None) -> bytes:
    """A request that is the only one on its connection."""
    common = "host: localhost\r\nconnection: close\r\n"
    if body is None:
        return f"GET {path} HTTP/1.1\r\n{common}\r\n".encode()
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\n{common}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@attrs.define
class Outcome:
    """How one request went.

    Attributes:
        status: of the answer; 0 where the connection broke before there was one.
        error: what the server said went wrong, in the stream or instead of it; None where nothing did.
        first, seconds: until the first token, and altogether.
        broken: whether the connection ended before the answer did.
    """

    status: int = 0
    headers: Mapping[str, str] = attrs.field(factory=dict)
    text: str = ""
    tokens: int = 0
    finish: str | None = None
    error: Mapping[str, Any] | None = None
    done: bool = False
    first: float | None = None
    seconds: float = 0.0
    broken: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its own end."""
        return self.status == 200 and self.finish is not None and self.error is None and not self.broken


async def complete(port: int, body: Mapping[str, Any], *, progress: list[int] | None = None) -> Outcome:
    """Ask for a completion and read it to its end, streamed or not; `progress` counts the tokens as they come."""
    outcome = Outcome()
    began = time.monotonic()
    try:
        exchange = await Exchange.send(port, "/v1/completions", body)
        began = exchange.sent_at
        try:
            outcome.status = await exchange.head()
            outcome.headers = exchange.headers
            if outcome.status == 200 and body.get("stream"):
                await _follow(exchange, outcome, progress)
            else:
                _read_whole(json.loads(await exchange.whole()), outcome)
        finally:
            exchange.close()
    except OSError:
        outcome.broken = True
    outcome.seconds = time.monotonic() - began
    return outcome


async def _follow(exchange: Exchange, outcome: Outcome, progress: list[int] | None) -> None:
    async for data in exchange.events():
        if data == "[DONE]":
            outcome.done = True
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = event["error"]
            continue
        if outcome.first is None:
            outcome.first = time.monotonic() - exchange.sent_at
        for choice in event["choices"]:
            outcome.text += choice["text"]
            outcome.tokens += 1
            outcome.finish = choice["finish_reason"]
            if progress is not None:
                progress[0] += 1


def _read_whole(answer: Mapping[str, Any], outcome: Outcome) -> None:
    if outcome.status != 200:
        outcome.error = answer.get("error")
        return
    outcome.text = answer["choices"][0]["text"]
    outcome.finish = answer["choices"][0]["finish_reason"]
    outcome.tokens = answer["usage"]["completion_tokens"]
