"""Clients that all hang up: streamed and not, orderly and by a reset, at every moment of a request's life."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any, Final

import attrs

from tests.chaos.watching import Scrape, scrape, until
from tests.chaos.wire import Exchange

ASKED: Final = 400
"""Tokens that each of them asks for and does not wait for."""


@attrs.define
class Storm:
    """What it was and what it left.

    Attributes:
        moments: how many hung up at which moment.
        before, last, after: the books before, at the last hang-up, and when nothing lived any more.
        seconds: from the last hang-up until nothing lived.
    """

    moments: Counter[str]
    before: Scrape
    last: Scrape
    after: Scrape
    seconds: float


def _body(draw: random.Random, *, stream: bool) -> dict[str, Any]:
    length = draw.choice((4, 60, 500))
    return {
        "prompt": [draw.randrange(16, 4000) for _ in range(length)],
        "max_tokens": ASKED,
        "ignore_eos": True,
        "stream": stream,
        "n": draw.choice((1, 1, 1, 2)),
    }


async def _hang_up(port: int, draw: random.Random, moments: Counter[str]) -> None:
    stream = draw.random() < 0.6
    moment = draw.choice(("at once", "soon", "in the middle"))
    exchange = await Exchange.send(port, "/v1/completions", _body(draw, stream=stream))
    try:
        if moment == "soon":
            await asyncio.sleep(draw.random() * 0.5)
        elif moment == "in the middle" and stream:
            wanted = draw.randrange(1, 12)
            async for _ in exchange.events():
                wanted -= 1
                if not wanted:
                    break
            assert exchange.status == 200, bytes(exchange.body)
        elif moment == "in the middle":
            await asyncio.sleep(0.5 + draw.random())
        moments[f"{'streamed' if stream else 'whole'}, {moment}"] += 1
    finally:
        exchange.close(reset=draw.random() < 0.5)


async def storm(port: int, *, hang_ups: int, at_once: int, seed: int = 1) -> Storm:
    """Let so many hang up, `at_once` of them living at any time, and wait until the engine has nothing left."""
    draw = random.Random(seed)
    moments: Counter[str] = Counter()
    before = await scrape(port)
    left = iter(range(hang_ups))

    async def one_after_another() -> None:
        for number in left:
            await _hang_up(port, random.Random(seed * hang_ups + number), moments)

    async with asyncio.TaskGroup() as crowd:
        for _ in range(at_once):
            crowd.create_task(one_after_another())
            await asyncio.sleep(draw.random() * 0.01)
    ended = time.monotonic()
    last = await scrape(port)
    after = await until(port, lambda seen: seen.is_idle)
    seconds = time.monotonic() - ended
    while (later := await _a_little_later(port)).accepted != after.accepted:
        after = later  # a request that had not even been read when its client left
    return Storm(moments, before, last, later, seconds)


async def _a_little_later(port: int) -> Scrape:
    await asyncio.sleep(0.6)
    return await until(port, lambda seen: seen.is_idle)
