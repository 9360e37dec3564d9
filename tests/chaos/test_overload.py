"""Five times as many requests at once as there are places: some are served, the others refused with Retry-After."""

from __future__ import annotations

import asyncio

from tests.chaos.overload import TOKENS, Flood, burst
from tests.chaos.subject import ROWS, WAITING, Subject
from tests.chaos.watching import Watch, until, watched

MIB = 2**20


def test_overload_is_refused_and_accepted_requests_are_computed_in_full_batches(subject: Subject) -> None:
    flood, watch = asyncio.run(_overload(subject.port))
    assert flood.odd == []
    assert len(flood.accepted) >= ROWS + WAITING
    assert flood.refused
    for each in flood.refused:
        assert int(each.headers["retry-after"]) >= 1
        assert each.error
        assert each.error["code"] == "overloaded"
    first, last = watch.scrapes[0], watch.scrapes[-1]
    assert last.accepted - first.accepted == len(flood.accepted), "the engine never hears of the others"
    # In steps, not in seconds: the engine computes full batches, and at most as many wait as may run three times over.
    computed, steps = last.generated - first.generated, last.steps - first.steps
    assert computed == TOKENS * len(flood.accepted)
    assert computed / steps > ROWS / 4
    assert max(each.waiting for each in watch.scrapes) <= WAITING + ROWS
    assert watch.unbalanced == []
    assert watch.statuses == {"/livez": [200], "/readyz": [200], "/health": [200]}
    for process in ("http", "engine"):
        sizes = [each.memory[process] for each in watch.scrapes]
        # Rows that decode on a CPU keep up to 64 MiB of what they gathered, and malloc as much again in pieces of batches before.
        assert sizes[-1] - sizes[0] < 192 * MIB


async def _overload(port: int) -> tuple[Flood, Watch]:
    await burst(port, 5 * (ROWS + WAITING))  # after which the engine holds what it needs for any batch
    async with watched(port) as watch:
        flood = await burst(port, 5 * (ROWS + WAITING))
        await until(port, lambda seen: seen.is_idle)
    return flood, watch
