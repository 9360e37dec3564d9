"""What every engine client knows of its engine: what that has reported, and who watches it."""

from __future__ import annotations

import asyncio
import time

from nanoserve.adapters.engine_process.client.ledger import Totals
from nanoserve.adapters.engine_process.client.replies import Replies
from nanoserve.ports.driving import EngineStatus, WatchListener
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.engine_link import Abort, Command, ForgetPrefixes, Logged, Unwatch, Watch


class ReportedEngine:
    """The part of an `EngineClient` that does not depend on where the engine runs."""

    def __init__(self) -> None:
        self._status = EngineStatus.STARTING
        self._facts: EngineFacts | None = None
        self._last_report = time.monotonic()
        self._totals = Totals()
        self._replies = Replies(lambda request_id: self._send(Abort(request_id)))
        self._started: asyncio.Future[None] | None = None
        self._watched: tuple[Watch, WatchListener] | None = None

    @property
    def status(self) -> EngineStatus:
        """As in `EngineClient`."""
        return self._status

    @property
    def facts(self) -> EngineFacts | None:
        """As in `EngineClient`."""
        return self._facts

    @property
    def state(self) -> EngineState | None:
        """As in `EngineClient`; counters go on through restarts, and sequences are counted as of now."""
        return self._totals.state(self._replies.ledger)

    @property
    def last_report(self) -> float:
        """As in `EngineClient`."""
        return self._last_report

    def forget_prefixes(self) -> None:
        """As in `EngineClient`; a new engine has none."""
        self._send(ForgetPrefixes())

    def watch(self, asked: Watch, listener: WatchListener) -> None:
        """As in `EngineClient`."""
        self._watched = (asked, listener)
        self._resume_watch()

    def unwatch(self) -> None:
        """As in `EngineClient`."""
        self._watched = None
        if self._status is EngineStatus.READY:
            self._send(Unwatch())

    def _send(self, command: Command) -> None:
        """Hand a command to the engine, where there is one."""
        raise NotImplementedError

    def _resume_watch(self) -> None:
        """Have a ready engine keep the step log that is asked for."""
        if self._watched is not None and self._status is EngineStatus.READY:
            self._send(self._watched[0])

    def _become(self, status: EngineStatus) -> None:
        self._status = status
        self._tell(status)

    def _tell(self, news: Logged | EngineStatus) -> None:
        if self._watched is not None:
            self._watched[1](news)
