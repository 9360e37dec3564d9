"""Chats with a server, many side by side, and what came of each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

import aiohttp
import attrs


@attrs.define
class Reply:
    """The outcome of one request: its text, whether it is whole, how many pieces, and the seconds to the first and the last."""

    text: str = ""
    is_whole: bool = False
    error: str = ""
    pieces: int = 0
    first: float = 0.0
    seconds: float = 0.0


def body(number: int, tokens: int = 24, *, stream: bool = True) -> dict[str, Any]:
    """A request of its own, which no cached prefix answers."""
    return {
        "messages": [{"role": "user", "content": f"{(number + 1) * 104729} foxes. Tell me of them."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


async def ask(session: aiohttp.ClientSession, url: str, asked: dict[str, Any]) -> Reply:
    """One request; what breaks is in `error`."""
    reply, began = Reply(), time.perf_counter()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=asked) as answer:
            if not asked["stream"] or answer.status != 200:
                whole = await answer.json()
                reply.is_whole = answer.status == 200
                reply.error = "" if reply.is_whole else str(whole)
                reply.text = whole["choices"][0]["message"]["content"] if reply.is_whole else ""
            else:
                async for line in answer.content:
                    _read(line, reply, time.perf_counter() - began)
    except (aiohttp.ClientError, OSError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.seconds = time.perf_counter() - began
    return reply


def _read(line: bytes, reply: Reply, at: float) -> None:
    if line == b"data: [DONE]\n":
        reply.is_whole = not reply.error
    elif line.startswith(b"data: "):
        event = json.loads(line[6:])
        if "error" in event:
            reply.error = event["error"]["code"]
        elif event["choices"] and (text := event["choices"][0]["delta"].get("content")):
            reply.first = reply.first or at
            reply.text += text
            reply.pieces += 1


async def ask_all(url: str, bodies: Iterable[dict[str, Any]], at_once: int) -> list[Reply]:
    """Requests side by side, in order."""
    gate = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(asked: dict[str, Any]) -> Reply:
            async with gate:
                return await ask(session, url, asked)

        return await asyncio.gather(*map(one, bodies))
