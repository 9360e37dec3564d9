"""The replicas: which of them take requests, looked at again and again, and what they publish of their caches; and how one is chosen."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Collection, Sequence
from typing import Final, TypeVar

import attrs
import httpx
import structlog

from nanoserve.entrypoints.client.server import read_address
from nanoserve.entrypoints.server.http.sse import end
from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex
from nanoserve_cluster.domain.routing.reported_blocks import ReportedBlocks
from nanoserve_cluster.domain.routing.router import Router
from nanoserve_cluster.entrypoints.route.bounds import Keeping
from nanoserve_cluster.entrypoints.route.settings import RouteSettings

MAX_PORT: Final = 65535
_MOST_HEALTH_BYTES: Final = 1 << 16
_MOST_BLOCKS: Final = 2**18
"""Blocks that are remembered of one replica: 4 million tokens in blocks of 16, more than a GPU's cache holds."""
T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class Replica:
    """One server.

    Attributes:
        events, replay: addresses of its KV events, if it publishes them.
        life: how often it was lost; what was counted in an earlier life is void.
        obstacle: why it takes no requests; None while it does.
        silences: looks that it has not answered at all since it was last heard of, by its health or by a part of an answer.
        suspected: set to have it looked at now.
    """

    number: int
    url: str
    events: str | None = None
    replay: str | None = None
    life: int = 0
    obstacle: str | None = "not asked yet"
    requests: int = 0
    silences: int = 0
    _waits: set[asyncio.Timeout] = attrs.field(factory=set, init=False)
    suspected: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def heard(self, awaited: Awaitable[T]) -> T:
        """Send a request and return the answer. Raises `httpx.ReadTimeout` where the replica is given up meanwhile."""
        bound = asyncio.timeout(None)
        self._waits.add(bound)
        try:
            async with bound:
                sent = await awaited
        except TimeoutError:
            raise httpx.ReadTimeout("it does not say how it is either") from None
        finally:
            self._waits.discard(bound)
        self.silences = 0
        return sent

    def give_up(self) -> None:
        """Let all who wait for it wait no more; each is ended once, however long it takes to end."""
        waits, self._waits = self._waits, set()
        for each in waits:
            each.reschedule(0.0)


def read_replicas(written: Sequence[str], setting: str = "replica") -> list[Replica]:
    """Replicas from `URL[,PORT[,PORT]]`; raises `BadValueError`."""
    if not written:
        raise BadValueError(setting, "name at least one: --replica http://127.0.0.1:8000")
    return [_read(setting, number, *each.split(",")) for number, each in enumerate(written)]


def _read(setting: str, number: int, url: str, *ports: str) -> Replica:
    address = read_address(url, setting=setting)
    if len(ports) > 2 or not all(each.isdecimal() and 0 < int(each) <= MAX_PORT for each in ports):
        raise BadValueError(setting, f"takes at most two ports behind the URL, got {','.join(ports)!r}")
    host = f"[{address.host}]" if ":" in address.host else address.host
    events, replay = (*(f"tcp://{host}:{each}" for each in ports), None, None)[:2]
    return Replica(number=number, url=address.url, events=events, replay=replay)


class RoutingTable(Router):
    """A `Router` with an index of its own, which replicas can keep up to date."""

    def __init__(self, policy: str, block_size: int) -> None:
        draw = random.Random()  # noqa: S311 - spreads load
        super().__init__(policy, PrefixIndex(_MOST_BLOCKS), block_size=block_size, draw=draw)

    def cached_blocks(self, replica: int) -> int:
        """How many blocks the replica is believed to have in its cache."""
        return self.index.held(replica)

    async def follow(self, replica: int, endpoint: str, replay_endpoint: str | None) -> None:
        """Enter what a replica publishes of its cache, until cancelled; `check_kv_events` has passed."""
        from nanoserve.adapters.zmq_events.subscriber import KVEventSubscriber  # noqa: PLC0415 - an extra

        blocks = ReportedBlocks(replica, self.index, self.block_size)
        await KVEventSubscriber(endpoint, replay_endpoint, lambda events: blocks.apply(*events)).run()


class Fleet:
    """Keeps `table` up to date with which replicas take requests, and what is in their caches.

    Raises `BadValueError` if the settings name no path to ask for their health.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        table: RoutingTable,
        client: httpx.AsyncClient,
        settings: RouteSettings,
    ) -> None:
        if not settings.health_path.startswith("/"):
            raise BadValueError("health_path", f"must begin with /, got {settings.health_path!r}")
        self.replicas = {each.number: each for each in replicas}
        self.table, self.client, self._settings = table, client, settings
        self._numbers = itertools.count(len(replicas))
        self._following, self._watching = dict[int, asyncio.Task[None]](), dict[int, asyncio.Task[None]]()

    @property
    def up(self) -> set[int]:
        """The numbers of the replicas that take requests."""
        return {each.number for each in self.replicas.values() if each.obstacle is None}

    async def look(self) -> None:
        """Look at all replicas once."""
        await asyncio.gather(*map(self._look_at, self.replicas.values()))

    async def watch(self) -> None:
        """Look at them again and again until cancelled."""
        try:
            self._watch_all()
            await asyncio.Event().wait()
        finally:
            await end(*self._watching.values(), *self._following.values())

    def adopt(self, urls: Collection[str]) -> None:
        """While it watches: have the replicas at these addresses too, and forget those elsewhere that neither take requests nor have any."""
        known = {each.url for each in self.replicas.values()}
        for each in list(self.replicas.values()):
            if each.url not in urls and each.obstacle and not each.requests:
                del self.replicas[each.number]
                self._watching.pop(each.number).cancel()
        for url in urls:
            if url not in known:
                new = Replica(number=next(self._numbers), url=url)
                self.replicas[new.number] = new
        self._watch_all()

    def _watch_all(self) -> None:
        for each in self.replicas.values():
            if each.number not in self._watching:
                self._watching[each.number] = asyncio.create_task(self._watch(each))

    async def _watch(self, replica: Replica) -> None:
        while True:
            await self._look_at(replica)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.health_interval):
                    await replica.suspected.wait()
            replica.suspected.clear()

    async def _look_at(self, replica: Replica) -> None:
        obstacle = await self._obstacle(replica)
        was_up, replica.obstacle = replica.obstacle is None, obstacle
        if replica.silences >= self._settings.health_failures:
            replica.give_up()
        if was_up == (obstacle is None):
            return
        log = structlog.get_logger().bind(replica=replica.url)
        if obstacle is None:
            self.table.join(replica.number)
            if replica.events is not None and self.table.reads_prefixes:
                self._following[replica.number] = asyncio.create_task(
                    self.table.follow(replica.number, replica.events, replica.replay)
                )
            log.info("a replica takes requests")
        else:
            if following := self._following.pop(replica.number, None):
                following.cancel()
            self.table.leave(replica.number)
            replica.life += 1
            log.warning("a replica takes no requests", reason=obstacle)

    async def _obstacle(self, replica: Replica) -> str | None:
        try:
            async with asyncio.timeout(self._settings.health_timeout):
                url = replica.url + self._settings.health_path
                async with self.client.stream("GET", url) as answer:
                    await Keeping().whole(answer, _MOST_HEALTH_BYTES)
        except Exception as error:  # noqa: BLE001 - whatever it is, the log says so and the replica is looked at again
            replica.silences += 1
            return str(error) or type(error).__name__
        replica.silences = 0
        return None if answer.status_code == httpx.codes.OK else f"it answers {answer.status_code}"
