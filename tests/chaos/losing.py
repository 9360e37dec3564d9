"""The engine is disturbed while many streams run: what each client and the probes see."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs

from tests.chaos.watching import Watch, scrape, until, until_ready, until_true, watched
from tests.chaos.wire import Outcome, complete

STREAMS: Final = 50
WHOLE: Final = 10
TOKENS: Final = 60
BOUND: Final = {"ignore_eos": False, "structured_outputs": {"regex": "([a-z]{3,9}[0-9]? ){100}"}}


def bodies() -> list[dict[str, Any]]:
    """Fifty streams and between them ten that are answered in one, greedy and sampled, some bound to an expression, all different."""
    draw = random.Random(3)
    return [
        {
            "prompt": [draw.randrange(16, 4000) for _ in range(draw.choice((5, 30)))],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": draw.choice((0.0, 0.8)),
            "seed": number,
            "stream": number % 6 < 5,
            **(BOUND if number % 5 == 2 else {}),
        }
        for number in range(STREAMS + WHOLE)
    ]


@attrs.define(kw_only=True)
class Loss:
    """What was seen.

    Attributes:
        outcomes: of `bodies()`, in order.
        away: seconds from what was done until `/readyz` was 200 again.
        watch: how it looked from outside.
    """

    outcomes: list[Outcome]
    away: float
    watch: Watch


async def undisturbed(port: int) -> list[Outcome]:
    """The same crowd when nothing happens."""
    return list(await asyncio.gather(*(complete(port, body) for body in bodies())))


async def lose(port: int, strike: Callable[[], Awaitable[object]], *, away: bool = True) -> Loss:
    """Strike while many of the streams have begun and others have not; `away`: the engine goes and returns."""
    progress = [[0] for _ in bodies()]
    before = await scrape(port)
    async with watched(port) as watch:
        asking = [
            asyncio.create_task(complete(port, body, progress=each))
            for body, each in zip(bodies(), progress, strict=True)
        ]
        await until(port, lambda seen: seen.accepted >= before.accepted + len(asking))
        await until_true(lambda: sum(each[0] >= 3 for each in progress) >= 20, period=0.005)
        struck = time.monotonic()
        await strike()
        if away:
            await until(port, lambda seen: seen.restarts > before.restarts)
            await until_ready(port)
        seconds = time.monotonic() - struck
        outcomes: Sequence[Outcome] = await asyncio.gather(*asking)
    return Loss(outcomes=list(outcomes), away=seconds, watch=watch)
