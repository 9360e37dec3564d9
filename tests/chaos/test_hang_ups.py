"""Clients that leave stop costing compute at once, whatever their request is doing and however they leave."""

from __future__ import annotations

import asyncio

from tests.chaos.faulty_engine import SLOW, marked
from tests.chaos.storm import ASKED, storm
from tests.chaos.subject import BLOCKS, Subject
from tests.chaos.watching import Scrape, scrape, until
from tests.chaos.wire import Exchange, complete

HANG_UPS = 500


def test_a_storm_of_hang_ups_leaves_nothing_behind(subject: Subject) -> None:
    passed = asyncio.run(storm(subject.port, hang_ups=HANG_UPS, at_once=60))
    assert len(passed.moments) == 6
    assert sum(passed.moments.values()) == HANG_UPS
    before, after = passed.before, passed.after
    assert after.is_balanced
    assert after.running == after.waiting == after.leaked == 0
    assert after.used == before.used == 0.0
    aborted = after.finished["abort"] - before.finished["abort"]
    assert aborted == after.accepted - before.accepted
    assert 0 < after.generated - before.generated < HANG_UPS * ASKED / 2
    assert asyncio.run(_steps_while_idle(subject.port)) == 0
    assert asyncio.run(complete(subject.port, {"prompt": "One", "max_tokens": 4})).is_whole


async def _steps_while_idle(port: int) -> int:
    before = await scrape(port)
    await asyncio.sleep(0.6)
    return (await scrape(port)).steps - before.steps


def test_a_crowd_that_hangs_up_leaves_its_blocks_to_who_stays(subject: Subject) -> None:
    """Beside a sequence that makes every step so long that none of the crowd could end by itself."""
    asyncio.run(_leave_a_slow_engine(subject.port))


async def _leave_a_slow_engine(port: int) -> None:
    slow = await Exchange.send(
        port,
        "/v1/completions",
        {"prompt": marked(SLOW), "max_tokens": 900, "ignore_eos": True, "stream": True},
    )
    assert await slow.head() == 200
    alone = await until(port, lambda seen: (seen.running, seen.waiting) == (1, 0))
    crowd = [
        await Exchange.send(
            port,
            "/v1/completions",
            {
                "prompt": [100 + number] * (4 if number % 3 else 300),
                "max_tokens": ASKED,
                "ignore_eos": True,
                "stream": number % 2 == 0,
            },
        )
        for number in range(90)
    ]
    await until(port, lambda seen: seen.running + seen.waiting == 91 and seen.running > 25)
    await until(port, lambda seen: seen.waiting > 20)
    for each in crowd:
        each.close(reset=True)
    after = await until(port, lambda seen: _is_alone(seen, alone))
    assert after.finished["abort"] - alone.finished["abort"] == len(crowd)
    slow.close()
    await until(port, lambda seen: seen.is_idle)
    assert (await scrape(port)).finished["length"] == alone.finished["length"]


def _is_alone(seen: Scrape, alone: Scrape) -> bool:
    """Whether as many blocks are free as with the one sequence (which may have taken another one since)."""
    return (seen.running, seen.waiting) == (1, 0) and seen.used <= alone.used + 2 / BLOCKS
