"""Looks at a server from outside while something is done to it: its probes, its metrics, and whether its books balance."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import attrs

from tests.chaos.wire import Exchange
from tests.patience import PATIENCE

_SAMPLE: Final = re.compile(r"^nanoserve:(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@attrs.frozen(kw_only=True)
class Scrape:
    """`/metrics` at one moment."""

    accepted: int
    finished: dict[str, int]
    running: int
    waiting: int
    steps: int
    generated: int
    used: float
    leaked: int
    restarts: int
    is_up: bool
    disconnected: int
    memory: dict[str, int]

    @property
    def is_balanced(self) -> bool:
        """Whether every sequence that was accepted is somewhere."""
        living = self.running + self.waiting
        return (
            min(self.running, self.waiting) >= 0
            and self.accepted == sum(self.finished.values()) + living
            and self.leaked == 0
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing lives and every block is free."""
        return self.running == self.waiting == 0 and self.used == 0.0


def read_page(page: str) -> Scrape:
    """The numbers that matter here, out of Prometheus' text format."""
    found: dict[str, float] = {}
    families: dict[str, dict[str, int]] = {"reason": {}, "process": {}}
    for name, labels, value in _SAMPLE.findall(page):
        found[name] = float(value)
        named = dict(_LABEL.findall(labels))
        if name == "requests_finished_total":
            families["reason"][named["reason"]] = int(float(value))
        elif name == "process_resident_memory_bytes":
            families["process"][named["process"]] = int(float(value))
    return Scrape(
        accepted=int(found["requests_accepted_total"]),
        finished=families["reason"],
        running=int(found["num_requests_running"]),
        waiting=int(found["num_requests_waiting"]),
        steps=int(found["engine_steps_total"]),
        generated=int(found["generation_tokens_total"]),
        used=found.get("kv_cache_usage_perc", 0.0),
        leaked=int(found.get("kv_blocks_leaked", 0)),
        restarts=int(found["engine_restarts_total"]),
        is_up=found["engine_up"] == 1.0,
        disconnected=int(found["clients_disconnected_total"]),
        memory=families["process"],
    )


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body."""
    exchange = await Exchange.send(port, path)
    body = await exchange.whole()
    return exchange.status, body


async def scrape(port: int) -> Scrape:
    """The metrics now."""
    status, page = await get(port, "/metrics")
    assert status == 200
    return read_page(page.decode())


async def until(port: int, holds: Callable[[Scrape], bool], *, period: float = 0.01) -> Scrape:
    """The first metrics for which something holds."""
    end = time.monotonic() + PATIENCE
    while not holds(seen := await scrape(port)):
        assert time.monotonic() < end, seen
        await asyncio.sleep(period)
    return seen


async def until_true(holds: Callable[[], bool], *, period: float = 0.01) -> None:
    """Return when something holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(period)


async def until_ready(port: int, status: int = 200) -> None:
    """Return when the server takes requests; or, with status 503, when it does not."""
    end = time.monotonic() + PATIENCE
    while (await get(port, "/readyz"))[0] != status:
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


@attrs.define
class Watch:
    """What was seen, look by look.

    Attributes:
        statuses: every different run of answers of each probe, in order.
        latencies: seconds that each probe took.
        unbalanced: scrapes whose books did not balance.
    """

    statuses: dict[str, list[int]] = attrs.field(factory=dict)
    latencies: list[float] = attrs.field(factory=list)
    scrapes: list[Scrape] = attrs.field(factory=list)

    @property
    def unbalanced(self) -> list[Scrape]:
        """Scrapes whose books did not balance."""
        return [each for each in self.scrapes if not each.is_balanced]

    async def look(self, port: int) -> None:
        """Ask every probe and read the metrics, once."""
        for path in ("/livez", "/readyz", "/health"):
            began = time.monotonic()
            status, _ = await get(port, path)
            self.latencies.append(time.monotonic() - began)
            seen = self.statuses.setdefault(path, [])
            if seen[-1:] != [status]:
                seen.append(status)
        self.scrapes.append(await scrape(port))


@contextlib.asynccontextmanager
async def watched(port: int, period: float = 0.05) -> AsyncIterator[Watch]:
    """Look before the body, again and again while it runs, and after it; any look that fails is an error."""
    watch = Watch()
    await watch.look(port)

    async def keep_looking() -> None:
        while True:
            await watch.look(port)
            await asyncio.sleep(period)

    looking = asyncio.create_task(keep_looking())
    try:
        yield watch
        if looking.done():
            looking.result()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    await watch.look(port)
