"""Clients in a process of their own, until it is killed: ones that ask without end, and ones that watch `/live`.

    python -m benchmarks.crowds asking URL STREAMS PROTOCOL INPUT_LEN OUTPUT_LEN
    python -m benchmarks.crowds watching URL COUNT

Says `SETTLED` once all are connected and have got something.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.serving.client import OK, Connections, Outcome, run_loop
from nanoserve.entrypoints.client.server import read_address

SETTLED: Final = "settled"
MOST_SECONDS: Final = 3600.0
LIVE: Final = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
PATHS: Final = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
}
"""Where streams are asked for, by the name of the protocol; all but the first take words instead of ids."""
ENDS: Final = (b"[DONE]", b"message_stop")
"""What is among the last bytes of a whole stream."""


@contextlib.contextmanager
def crowd(*arguments: str | int) -> Iterator[None]:
    """The clients are there for as long as the context lasts."""
    command = [sys.executable, "-m", "benchmarks.crowds", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
        try:
            assert clients.stdout is not None
            if clients.stdout.readline().strip() != SETTLED:
                raise SystemExit(f"these clients could not begin: {arguments}")
            yield
        finally:
            clients.kill()


@attrs.define(kw_only=True)
class UnreadAnswer(Outcome):
    """The bytes of an answer, of which nothing but the end is looked at; `begun` is called when the first ones come."""

    begun: Callable[[], object]
    tail: bytes = b""

    def feed(self, piece: bytes, now: float) -> None:
        """Read a piece as it comes."""
        self.tail = (self.tail + piece)[-64:]
        if not self.arrivals:
            self.arrivals.append(now)
            self.begun()

    def close(self) -> None:
        """Whole is what ends as its protocol says."""
        self._is_whole = any(end in self.tail for end in ENDS)
        super().close()


async def _watch(url: str, begun: Callable[[], object]) -> None:
    address = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**24)
    writer.write(LIVE)
    await reader.readuntil(b"event: trace")
    begun()
    while await reader.read(2**16):
        pass
    raise SystemExit("the server has sent a viewer home")


def _request(draw: random.Random, protocol: str, *lengths: str) -> bytes:
    """A prompt that no other request has."""
    input_len, output_len = map(int, lengths)
    asked: dict[str, Any] = {"max_tokens": output_len, "temperature": 0, "stream": True}
    if protocol == "completions":
        asked |= {"prompt": draw.choices(range(20, 920), k=input_len), "ignore_eos": True}
    else:
        words = draw.choices("abcdefgh", k=input_len // 2)
        asked["messages"] = [{"role": "user", "content": " ".join(words)}]
    body = json.dumps(asked).encode()
    head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return f"{head}content-type: application/json\r\n\r\n".encode() + body


async def _ask(connections: Connections, begun: Callable[[], object], asked: list[str]) -> None:
    draw, first = random.Random(), begun
    while True:
        answer = UnreadAnswer(scheduled=0.0, begun=first)
        await connections.ask(_request(draw, *asked), answer, MOST_SECONDS)
        if answer.result != OK:
            raise SystemExit(f"an answer failed: {answer.result} {answer.message} {answer.tail!r}")
        first = int  # does nothing


async def _run(role: str, url: str, count: str, *asked: str) -> None:
    connections, left = Connections(read_address(url)), itertools.count(int(count) - 1, -1)

    def begun() -> None:
        if next(left) == 0:
            print(SETTLED, flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(int(count)):
            group.create_task(
                _watch(url, begun) if role == "watching" else _ask(connections, begun, list(asked))
            )


if __name__ == "__main__":
    run_loop(_run(*sys.argv[1:]))
