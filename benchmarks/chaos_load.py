"""Load for `benchmarks.server_chaos`: clients that ask one after another, and requests sent by a clock that waits for nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import attrs

from tests.chaos.overload import Flood, body, sort_out
from tests.chaos.subject import ROWS, WAITING
from tests.chaos.watching import until
from tests.chaos.wire import Exchange, Outcome, complete


async def closed_loop(port: int, seconds: float, clients: int = ROWS) -> tuple[float, list[Outcome]]:
    """Requests per second that are served when so many clients ask one after another; and how those went."""
    draw = random.Random(5)
    outcomes: list[Outcome] = []
    end = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < end:
            outcomes.append(await complete(port, body(draw)))

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(outcomes) / (time.monotonic() - began), outcomes


@attrs.define
class OpenLoop:
    """What came of it.

    Attributes:
        seconds: from the first request to the last answer.
        late: seconds by which the clock was late at worst, which is the load's own fault.
    """

    flood: Flood
    seconds: float
    late: float


async def open_loop(port: int, rate: float, seconds: float) -> OpenLoop:
    """Send `rate` requests per second, at random moments, whatever becomes of them."""
    draw = random.Random(7)
    asking: list[asyncio.Task[Outcome]] = []
    late = 0.0
    began = due = time.monotonic()
    while due - began < seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        late = max(late, time.monotonic() - due)
        asking.append(asyncio.create_task(complete(port, body(draw))))
    outcomes = await asyncio.gather(*asking)
    return OpenLoop(sort_out(outcomes), time.monotonic() - began, late)


async def refused_one_by_one(port: int, count: int) -> list[Outcome]:
    """Refusals by a server that is full and has nothing else to send: the time that a refusal takes by itself."""
    fillers = [
        await Exchange.send(
            port, "/v1/completions", body(random.Random(number)) | {"max_tokens": 900, "stream": False}
        )
        for number in range(ROWS + WAITING)
    ]
    try:
        await until(port, lambda seen: seen.running + seen.waiting == len(fillers) and seen.running == ROWS)
        return [await complete(port, body(random.Random(number))) for number in range(count)]
    finally:
        for each in fillers:
            each.close()
        await until(port, lambda seen: seen.is_idle)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
