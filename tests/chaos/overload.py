"""More requests than can be served, sent by a clock that does not wait for answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from tests.chaos.subject import ROWS, WAITING
from tests.chaos.watching import until
from tests.chaos.wire import Exchange, Outcome, complete

TOKENS: Final = 64


def _body(draw: random.Random) -> dict[str, Any]:
    return {
        "prompt": [draw.randrange(16, 4000) for _ in range(16)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }


async def closed_loop(port: int, seconds: float, clients: int = ROWS) -> tuple[float, list[Outcome]]:
    """Requests per second that are served when so many clients ask one after another; and how those went."""
    draw = random.Random(5)
    outcomes: list[Outcome] = []
    end = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < end:
            outcomes.append(await complete(port, _body(draw)))

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(outcomes) / (time.monotonic() - began), outcomes


@attrs.define
class Flood:
    """What became of the requests.

    Attributes:
        seconds: from the first request to the last answer.
        accepted, refused: by their status, 200 or 503; `odd` is everything else.
        late: seconds by which the clock was late at worst, which is the load's own fault.
    """

    seconds: float
    accepted: Sequence[Outcome]
    refused: Sequence[Outcome]
    odd: Sequence[Outcome]
    late: float


async def open_loop(port: int, rate: float, seconds: float) -> Flood:
    """Send `rate` requests per second, at random moments, whatever becomes of them."""
    draw = random.Random(7)
    asking: list[asyncio.Task[Outcome]] = []
    late = 0.0
    began = due = time.monotonic()
    while due - began < seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        late = max(late, time.monotonic() - due)
        asking.append(asyncio.create_task(complete(port, _body(draw))))
    return _judge(await asyncio.gather(*asking), began, late)


async def burst(port: int, count: int) -> Flood:
    """Send so many requests at once."""
    draw = random.Random(7)
    began = time.monotonic()
    return _judge(await asyncio.gather(*(complete(port, _body(draw)) for _ in range(count))), began, 0.0)


def _judge(outcomes: Sequence[Outcome], began: float, late: float) -> Flood:
    whole = [each for each in outcomes if each.is_whole]
    refused = [each for each in outcomes if each.status == 503]
    odd = [each for each in outcomes if not each.is_whole and each.status != 503]
    return Flood(time.monotonic() - began, whole, refused, odd, late)


async def refused_one_by_one(port: int, count: int) -> list[Outcome]:
    """Refusals by a server that is full and has nothing else to send: the time that a refusal takes by itself."""
    fillers = [
        await Exchange.send(
            port, "/v1/completions", _body(random.Random(number)) | {"max_tokens": 900, "stream": False}
        )
        for number in range(ROWS + WAITING)
    ]
    try:
        await until(port, lambda seen: seen.running + seen.waiting == len(fillers) and seen.running == ROWS)
        return [await complete(port, _body(random.Random(number))) for number in range(count)]
    finally:
        for each in fillers:
            each.close()
        await until(port, lambda seen: seen.is_idle)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
