"""Clients in a process of their own, until it is killed: ones that ask without end, and ones that watch `/live`.

    python -m benchmarks.crowds asking URL STREAMS PROTOCOL INPUT_LEN OUTPUT_LEN
    python -m benchmarks.crowds watching URL COUNT

Says `SETTLED` once all are connected and have got something. Imports nothing that takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, Final

SETTLED: Final = "settled"
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


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urllib.parse.urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port, limit=2**24)


async def _watch(url: str, begun: asyncio.Barrier) -> None:
    reader, writer = await _connect(url)
    writer.write(LIVE)
    await reader.readuntil(b"event: trace")
    await begun.wait()
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
    head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return f"{head}content-type: application/json\r\n\r\n".encode() + body


async def _ask(url: str, begun: asyncio.Barrier, draw: random.Random, asked: Sequence[str]) -> None:
    first = True
    while True:
        reader, writer = await _connect(url)
        writer.write(_request(draw, *asked))
        tail = b""
        while data := await reader.read(2**16):
            tail = (tail + data)[-64:]
            if first:
                first = False
                await begun.wait()
        writer.close()
        if not any(end in tail for end in ENDS):
            raise SystemExit(f"an answer broke off: {tail!r}")


async def _run(arguments: list[str]) -> None:
    role, url, count, *asked = arguments
    begun = asyncio.Barrier(int(count) + 1)
    async with asyncio.TaskGroup() as group:
        for _ in range(int(count)):
            group.create_task(
                _watch(url, begun) if role == "watching" else _ask(url, begun, random.Random(), asked)
            )
        await begun.wait()
        print(SETTLED, flush=True)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1:]))
