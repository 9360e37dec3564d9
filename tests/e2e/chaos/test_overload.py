"""Five times as many requests as can be served: some are served as always, the others are told at once to come back."""

from __future__ import annotations

import asyncio

from tests.e2e.chaos.overload import Flood, closed_loop, open_loop, quantile
from tests.e2e.chaos.subject import ROWS, WAITING, Subject
from tests.e2e.chaos.watching import Watch, until, watched
from tests.e2e.chaos.wire import Outcome

MIB = 2**20


def test_overload_is_refused_and_does_not_slow_what_was_accepted(subject: Subject) -> None:
    capacity, usual, flood, watch = asyncio.run(_overload(subject.port, seconds=4.0))
    assert all(each.is_whole for each in usual)
    assert flood.odd == []
    # Five times what was measured before; beside other work that may have been as little as a third of what there is.
    assert 2 * len(flood.refused) > len(flood.accepted) > 0
    for each in flood.refused:
        assert int(each.headers["retry-after"]) >= 1
        assert each.error
        assert each.error["code"] == "overloaded"
    served = len(flood.accepted) / flood.seconds
    assert served > capacity / 3, "refusing leaves room for computing"
    # At most as many wait as may run three times over: what is accepted takes a bounded multiple of its usual time.
    bound = 12 * quantile([each.seconds for each in usual], 0.9)
    assert quantile([each.seconds for each in flood.accepted], 0.9) < bound
    assert quantile([each.seconds for each in flood.refused], 0.5) < 0.5
    assert watch.unbalanced == []
    assert watch.statuses == {"/livez": [200], "/readyz": [200], "/health": [200]}
    assert max(each.waiting for each in watch.scrapes) <= WAITING + ROWS
    for process in ("http", "engine"):
        sizes = [each.memory[process] for each in watch.scrapes]
        assert sizes[-1] - sizes[0] < 64 * MIB


async def _overload(port: int, seconds: float) -> tuple[float, list[Outcome], Flood, Watch]:
    capacity, usual = await closed_loop(port, seconds / 2)
    async with watched(port) as watch:
        flood = await open_loop(port, 5 * capacity, seconds)
        await until(port, lambda seen: seen.is_idle)
    return capacity, usual, flood, watch
