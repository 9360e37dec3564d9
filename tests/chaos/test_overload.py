"""Five times as many requests at once as there are places: some are served, the others are told to come back."""

from __future__ import annotations

import asyncio
import random

from tests.chaos.subject import ROWS, WAITING, Subject
from tests.chaos.watching import Watch, until, watched
from tests.chaos.wire import Outcome, complete

MIB = 2**20
TOKENS = 64


def test_overload_is_refused_and_what_was_accepted_is_computed_in_full_batches(subject: Subject) -> None:
    outcomes, watch = asyncio.run(_overload(subject.port))
    accepted = [each for each in outcomes if each.is_whole]
    refused = [each for each in outcomes if not each.is_whole]
    assert len(accepted) >= ROWS + WAITING
    assert {each.status for each in refused} == {503}
    for each in refused:
        assert int(each.headers["retry-after"]) >= 1
        assert each.error
        assert each.error["code"] == "overloaded"
    first, last = watch.scrapes[0], watch.scrapes[-1]
    assert last.accepted - first.accepted == len(accepted), "the engine never hears of the others"
    # In steps, not in seconds: the engine computes full batches, and at most as many wait as may run three times over.
    computed, steps = last.generated - first.generated, last.steps - first.steps
    assert computed == TOKENS * len(accepted)
    assert computed / steps > ROWS / 4
    assert max(each.waiting for each in watch.scrapes) <= WAITING + ROWS
    assert watch.unbalanced == []
    assert watch.statuses == {"/livez": [200], "/readyz": [200], "/health": [200]}
    for process in ("http", "engine"):
        sizes = [each.memory[process] for each in watch.scrapes]
        assert sizes[-1] - sizes[0] < 64 * MIB


async def _overload(port: int) -> tuple[list[Outcome], Watch]:
    await _burst(port, ROWS)  # after which the engine holds what it needs for any batch
    async with watched(port) as watch:
        outcomes = await _burst(port, 5 * (ROWS + WAITING))
        await until(port, lambda seen: seen.is_idle)
    return outcomes, watch


async def _burst(port: int, count: int) -> list[Outcome]:
    draw = random.Random(7)
    fixed = {"max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    prompts = [[draw.randrange(16, 4000) for _ in range(16)] for _ in range(count)]
    return await asyncio.gather(*(complete(port, {"prompt": each, **fixed}) for each in prompts))
