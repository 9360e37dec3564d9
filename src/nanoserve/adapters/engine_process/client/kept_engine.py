"""`EngineClient`: an engine that a keeper keeps alive, as far as it is known here, and the requests that outlive it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from nanoserve.adapters.engine_process.client.ledger import Ledger, Totals
from nanoserve.adapters.engine_process.client.orders import Orders
from nanoserve.adapters.engine_process.client.requests import PendingReply, Requests
from nanoserve.ports import engine_link, errors
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineStatus, WatchListener
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.request import Request
from nanoserve.ports.steering import Steering

_AWAY: Final = (EngineStatus.RESTARTING, EngineStatus.FAILED, EngineStatus.STOPPED)
TRANSITIONS: Final = {
    EngineStatus.STARTING: (EngineStatus.READY, EngineStatus.FAILED, EngineStatus.STOPPED),
    EngineStatus.READY: (EngineStatus.STALLED, *_AWAY),
    EngineStatus.STALLED: _AWAY,
    EngineStatus.RESTARTING: (EngineStatus.READY, *_AWAY),
    EngineStatus.FAILED: (EngineStatus.STOPPED,),
    EngineStatus.STOPPED: (),
}
"""The statuses that may follow each status; `docs/architecture.md` draws its diagram from this table."""
_LOOK: Final = 0.25
"""Seconds between two looks at whose time is over."""


class Keeper(Protocol):
    """Keeps an engine alive, and reports its status to the `KeptEngine`, until it is stopped."""

    @property
    def restarts(self) -> int:
        """How often the engine had to be started again."""

    async def start(self, engine: KeptEngine[Any], /) -> None:
        """Have an engine from now on; returns before it is ready."""

    async def stop(self) -> None:
        """Have none any more; may be called again, and without a start."""


KeeperT = TypeVar("KeeperT", bound=Keeper)


class KeptEngine(Generic[KeeperT]):
    """The engine as a server holds it, wherever it runs. Everything happens in the event loop that called `start`.

    Args:
        stall_timeout: seconds of silence after which a ready engine counts as stalled without its keeper's saying so.

    Attributes:
        last_report: the monotonic clock at the last report.
    """

    def __init__(
        self, keeper: KeeperT, counts: Counts | None = None, *, stall_timeout: float = math.inf
    ) -> None:
        self.keeper = keeper
        self.facts: EngineFacts | None = None
        self.last_report = time.monotonic()
        self.ledger = Ledger(counts or Counts())
        self.totals = Totals()
        self.requests = Requests(self.ledger)
        self.orders = Orders(self.requests)
        self.on_move: Callable[[], None] = lambda: None
        self._status = EngineStatus.STARTING
        self._stall_timeout = stall_timeout
        self._settled = asyncio.Event()
        self._why_closed: Exception = errors.EngineDiedError("the server has stopped")
        self._watched: tuple[engine_link.Watch, WatchListener] | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        is_silent = time.monotonic() - self.last_report > self._stall_timeout
        return EngineStatus.STALLED if self._status is EngineStatus.READY and is_silent else self._status

    @property
    def state(self) -> EngineState | None:
        """The latest state; counters continue through restarts, and sequences are counted as of now."""
        return self.totals.state(self.ledger)

    @property
    def restarts(self) -> int:
        return self.keeper.restarts

    @property
    def steering(self) -> Steering:
        return self.orders.steering

    @property
    def is_idle(self) -> bool:
        """True if nobody waits for an answer; silence is no stall then, if the engine says it is there."""
        return not self.requests and not self.totals.has_work

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._end_overdue())
        await self.keeper.start(self)
        await self._settled.wait()
        if self._status in {EngineStatus.FAILED, EngineStatus.STOPPED}:
            raise self._why_closed

    async def stop(self) -> None:
        """End the engine, as far as it is ours, and every answer."""
        self.leave()
        if self._looking is not None:
            self._looking.cancel()
        await self.keeper.stop()

    def submit(self, request: Request) -> PendingReply:
        """Hand a request over, to the next engine if need be; one that cannot be sent at all ends with `BadValueError`."""
        if self._status is EngineStatus.STARTING:
            raise errors.EngineLoadingError("the engine is starting")
        if self._status in {EngineStatus.FAILED, EngineStatus.STOPPED}:
            raise errors.EngineLoadingError("the engine has ended and is not started again", retry_after=30)
        return self.requests.open(request)

    def forget_prefixes(self) -> None:
        self.requests.send(engine_link.ForgetPrefixes())

    async def load_lora(self, name: str, folder: str) -> None:
        self._check_ready()
        await self.orders.load_lora(name, folder)
        self._show_loras({name}, ())

    async def unload_lora(self, name: str) -> None:
        self._check_ready()
        await self.orders.unload_lora(name)
        self._show_loras((), {name})

    def _show_loras(self, more: Collection[str], fewer: Collection[str]) -> None:
        """Report the adapters' names to members."""
        if self.facts is not None:
            names = dict.fromkeys([*self.facts.loras, *more])
            self.facts = attrs.evolve(self.facts, loras=tuple([each for each in names if each not in fewer]))
            self.on_move()

    async def steer(self, order: engine_link.Order) -> Steering:
        """Have the engine carry out an order. One that dies comes back paused if it was, and with the weights that it had."""
        self._check_ready()
        return await self.orders.steer(order)

    def _check_ready(self) -> None:
        if self._status is not EngineStatus.READY:
            raise errors.EngineLoadingError("the engine is starting; try again later")

    def watch(self, asked: engine_link.Watch, listener: WatchListener) -> None:
        self._watched = (asked, listener)
        self._resume_watch()

    def unwatch(self) -> None:
        self._watched = None
        if self._status is EngineStatus.READY:
            self.requests.send(engine_link.Unwatch())

    def take(self, report: engine_link.Report) -> None:
        """Handle one report of the engine."""
        self.last_report = time.monotonic()
        match report:
            case engine_link.Turned(events, state):
                self.requests.take(events)
                if state is not None:
                    self.totals.take(state)
            case engine_link.Ready(facts):
                names = dict.fromkeys([*facts.loras, *self.orders.folders])
                self.facts = attrs.evolve(facts, loras=tuple(names))
            case engine_link.Refused():
                self.requests.refuse(report)
            case engine_link.Obeyed():
                self.orders.take(report)
            case engine_link.Logged():
                self._tell(report)

    def welcome(self, send: Callable[[engine_link.Command], None]) -> None:
        """An engine is ready and takes commands: send it the waiting requests."""
        self.requests.engine = send
        self.orders.restore()
        self.move(EngineStatus.READY)
        self.requests.hand_over_waiting()

    def move(self, status: EngineStatus) -> None:
        """Change the status, which `TRANSITIONS` must allow."""
        assert status in TRANSITIONS[self._status], (
            f"{self._status.value} is never followed by {status.value}"
        )
        self._status = status
        if status is not EngineStatus.READY:
            self.orders.lose_engine()
        self._tell(status)
        self._settled.set()
        self._resume_watch()
        self.on_move()

    def close(
        self, status: EngineStatus, error: errors.NanoserveError, *, why: Exception | None = None
    ) -> None:
        """Come to an end, with `error` for every request, and `why` for who waits for the engine to become ready."""
        self._why_closed = why or error
        self.move(status)
        self.requests.fail_all(error)

    def leave(self) -> None:
        """The engine stops, or is no longer ours to use."""
        if self._status is not EngineStatus.STOPPED:
            why = errors.EngineDiedError("the server has stopped")
            self.close(
                EngineStatus.STOPPED, errors.DrainingError("the server is stopping", retry_after=5), why=why
            )

    def _resume_watch(self) -> None:
        """Have a ready engine keep the step log that is asked for."""
        if self._watched is not None and self._status is EngineStatus.READY:
            self.requests.send(self._watched[0])

    def _tell(self, news: engine_link.Logged | EngineStatus) -> None:
        if self._watched is not None:
            self._watched[1](news)

    async def _end_overdue(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            self.requests.end_overdue(time.monotonic())
