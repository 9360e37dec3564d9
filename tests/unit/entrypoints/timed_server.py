"""A small real HTTP server that speaks enough of OpenAI's protocol and takes exactly as long as it is told.

It listens on a socket of its own in a thread of its own, so that clients are tried over the wire and in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs

from tests.unit.entrypoints.in_thread import in_thread


@attrs.define(kw_only=True)
class Behaviour:
    """How it answers; tests change it while it runs. Times are seconds.

    Attributes:
        first, gap: until the first token, and between two.
        hold: nothing is answered before so many requests have come.
        refuse: every n-th request is refused with this status.
        takes_ids: prompts of token ids are a 400 where it is false.
        break_after: hang up, or (`error`) report an error inside the stream, after so many tokens.
        extras: a first chunk with a role and no text, comments, and CRLF line ends, as other servers send them.
        usage: whether the last chunk counts tokens.
        says: the text of each token; repeated.
        chunked: whether the body is sent in HTTP chunks; otherwise it ends with the connection.
        key: what requests must show.
    """

    first: float = 0.0
    gap: float = 0.0
    hold: int = 0
    refuse: tuple[int, int] | None = None
    takes_ids: bool = True
    break_after: int | None = None
    error: str | None = None
    extras: bool = False
    usage: bool = True
    says: tuple[str, ...] = ("word ",)
    chunked: bool = True
    close_idle: bool = False
    key: str | None = None
    facts: dict[str, Any] = attrs.field(factory=dict)


@attrs.define
class TimedServer:
    """Where it listens, and what it was asked."""

    behaviour: Behaviour
    port: int = 0
    bodies: list[dict[str, Any]] = attrs.field(factory=list)
    heads: list[str] = attrs.field(factory=list)
    hung_up: int = 0
    connections: int = 0
    _came: asyncio.Condition = attrs.field(factory=asyncio.Condition)
    _talks: set[asyncio.Task[None]] = attrs.field(factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        for each in self._talks:
            each.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((line for line in head.lower().split("\r\n") if "content-length" in line), ":0")
                body = await reader.readexactly(int(length.partition(":")[2]))
                self.heads.append(head)
                if not await self._answer(head, body, writer) or self.behaviour.close_idle:
                    break
        writer.close()

    async def _answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        method, path = head.split()[:2]
        if self.behaviour.key and f"authorization: bearer {self.behaviour.key}" not in head.lower():
            return await _send_json(writer, 401, {"error": {"message": "who are you?", "code": "no_key"}})
        if method == "GET":
            return await self._describe(path, writer)
        asked = json.loads(body)
        self.bodies.append(asked)
        refuse = self.behaviour.refuse
        if refuse and len(self.bodies) % refuse[0] == 0:
            return await _send_json(writer, refuse[1], {"error": {"message": "try again later"}})
        if not self.behaviour.takes_ids and isinstance(asked.get("prompt"), list):
            return await _send_json(writer, 400, {"error": {"message": "prompt must be a string"}})
        return await self._stream(asked, path.endswith("/chat/completions"), writer)

    async def _describe(self, path: str, writer: asyncio.StreamWriter) -> bool:
        if path in self.behaviour.facts:
            return await _send_json(writer, 200, self.behaviour.facts[path])
        if path == "/v1/models":
            models = [{"id": "timed", "max_model_len": 4096}, {"id": "other"}]
            return await _send_json(writer, 200, {"object": "list", "data": models})
        return await _send_json(writer, 404, {"error": {"message": "no such page"}})

    async def _stream(self, asked: dict[str, Any], is_chat: bool, writer: asyncio.StreamWriter) -> bool:
        behaviour, chunked = self.behaviour, self.behaviour.chunked
        ending = "transfer-encoding: chunked" if chunked else "connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{ending}\r\n\r\n".encode())
        try:
            async for frame in self._frames(asked, is_chat):
                line_end = b"\r\n" if behaviour.extras else b"\n"
                data = frame.replace(b"\n", line_end)
                writer.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
                await writer.drain()
                if writer.is_closing():
                    raise ConnectionResetError
        except ConnectionError:
            self.hung_up += 1
            return False
        except _HungUpError:
            return False
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return chunked

    async def _frames(self, asked: dict[str, Any], is_chat: bool) -> AsyncIterator[bytes]:
        behaviour, count = self.behaviour, asked.get("max_tokens", 8)
        async with self._came:
            self._came.notify_all()
            await self._came.wait_for(lambda: len(self.bodies) >= behaviour.hold)
        if behaviour.extras:
            yield b": ping\n\n"
            yield _chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        for number in range(count):
            await asyncio.sleep(behaviour.gap if number else behaviour.first)
            if number == behaviour.break_after:
                if behaviour.error is None:
                    raise _HungUpError
                yield b"data: " + json.dumps({"error": {"message": behaviour.error}}).encode() + b"\n\n"
                break
            text = behaviour.says[number % len(behaviour.says)]
            said = {"delta": {"content": text}} if is_chat else {"text": text}
            yield _chunk({**said, "finish_reason": "length" if number + 1 == count else None})
        if behaviour.usage:
            usage = {"prompt_tokens": _prompt_length(asked), "completion_tokens": count}
            yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


class _HungUpError(Exception):
    """The server is told to leave in the middle of an answer."""


def _chunk(choice: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def _prompt_length(asked: dict[str, Any]) -> int:
    prompt = asked.get("prompt")
    return len(prompt.split() if isinstance(prompt, str) else prompt or ())


async def _send_json(writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


@contextlib.contextmanager
def timed_server(behaviour: Behaviour | None = None) -> Iterator[TimedServer]:
    """Runs until the block ends."""
    served = TimedServer(behaviour or Behaviour())
    with in_thread(served.serve):
        yield served
