"""What every engine client knows of its engine, wherever that runs: its status, its reports, and who watches it."""

from __future__ import annotations

import asyncio
import time

from nanoserve.adapters.engine_process.client.ledger import Ledger, Totals
from nanoserve.adapters.engine_process.client.replies import Replies
from nanoserve.adapters.engine_process.client.supervision import following
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineStatus, WatchListener
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.engine_link import (
    Abort,
    Command,
    ForgetPrefixes,
    Logged,
    Ready,
    Refused,
    Report,
    Turned,
    Unwatch,
    Watch,
)
from nanoserve.ports.errors import EngineDiedError, NanoserveError


class ReportedEngine:
    """The part of an `EngineClient` that does not depend on where the engine runs; `counts` are those of its ledger."""

    def __init__(self, counts: Counts | None = None) -> None:
        self._status = EngineStatus.STARTING
        self._settled = asyncio.Event()
        self._facts: EngineFacts | None = None
        self._last_report = time.monotonic()
        self._totals = Totals()
        self._ledger = Ledger(counts or Counts())
        self._replies = Replies(lambda request_id: self._send(Abort(request_id)), self._ledger)
        self._why_closed: Exception = EngineDiedError("the server has stopped")
        self._watched: tuple[Watch, WatchListener] | None = None

    @property
    def status(self) -> EngineStatus:
        """What it is doing now."""
        return self._status

    @property
    def facts(self) -> EngineFacts | None:
        """Of the running engine, or of the last one."""
        return self._facts

    @property
    def state(self) -> EngineState | None:
        """The latest books; counters go on through restarts, and sequences are counted as of now."""
        return self._totals.state(self._ledger)

    @property
    def last_report(self) -> float:
        """The monotonic clock at the last report."""
        return self._last_report

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; a new engine has none."""
        self._send(ForgetPrefixes())

    def watch(self, asked: Watch, listener: WatchListener) -> None:
        """Have this engine and those that follow keep a step log."""
        self._watched = (asked, listener)
        self._resume_watch()

    def unwatch(self) -> None:
        """Keep no step log any more."""
        self._watched = None
        if self._status is EngineStatus.READY:
            self._send(Unwatch())

    def _send(self, command: Command) -> None:
        """Hand a command to the engine, where there is one."""
        raise NotImplementedError

    def _take(self, report: Report) -> None:
        self._last_report = time.monotonic()
        match report:
            case Ready(facts):
                self._facts = facts
            case Refused():
                self._replies.refuse(report)
            case Turned(events, state):
                if self._replies.take(events):
                    self._note_answer()
                if state is not None:
                    self._totals.take(state)
            case Logged():
                self._tell(report)
            case _:
                pass

    def _note_answer(self) -> None: ...

    def _resume_watch(self) -> None:
        """Have a ready engine keep the step log that is asked for."""
        if self._watched is not None and self._status is EngineStatus.READY:
            self._send(self._watched[0])

    def _move(self, status: EngineStatus) -> None:
        """Change the status, which `TRANSITIONS` must allow."""
        self._status = following(self._status, status)
        self._tell(self._status)
        self._settled.set()
        self._resume_watch()

    def _close(self, status: EngineStatus, error: NanoserveError, *, why: Exception | None = None) -> None:
        """Come to an end, with `error` for every request, and `why` for who waits for the engine to become ready."""
        self._why_closed = why or error
        self._move(status)
        self._replies.fail_all(error)

    async def _until_settled(self) -> None:
        """Return once the engine is ready; raise why it is not going to be."""
        await self._settled.wait()
        if self._status in {EngineStatus.FAILED, EngineStatus.STOPPED}:
            raise self._why_closed

    def _tell(self, news: Logged | EngineStatus) -> None:
        if self._watched is not None:
            self._watched[1](news)
