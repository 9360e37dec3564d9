"""Clients that leave stop costing compute at once, whatever their request is doing and however they leave."""

from __future__ import annotations

import asyncio

from tests.chaos.storm import ASKED, storm
from tests.chaos.subject import Subject
from tests.chaos.watching import scrape
from tests.chaos.wire import complete

HANG_UPS = 500


def test_hang_ups_leave_nothing_behind(subject: Subject) -> None:
    passed = asyncio.run(storm(subject.port, hang_ups=HANG_UPS, at_once=60))
    assert len(passed.moments) == 6
    assert sum(passed.moments.values()) == HANG_UPS
    before, after = passed.before, passed.after
    assert after.is_balanced
    assert after.running == after.waiting == after.leaked == 0
    assert after.used == before.used == 0.0
    ended = {name: count - before.finished.get(name, 0) for name, count in after.finished.items()}
    assert ended["abort"] + ended["length"] == after.accepted - before.accepted
    assert ended["abort"] > 9 * ended["length"], (
        "some may be answered before their client has come to its end"
    )
    assert 0 < after.generated - before.generated < HANG_UPS * ASKED / 2
    assert asyncio.run(_steps_while_idle(subject.port)) == 0
    assert asyncio.run(complete(subject.port, {"prompt": "One", "max_tokens": 4})).is_whole


async def _steps_while_idle(port: int) -> int:
    before = await scrape(port)
    await asyncio.sleep(0.6)
    return (await scrape(port)).steps - before.steps
