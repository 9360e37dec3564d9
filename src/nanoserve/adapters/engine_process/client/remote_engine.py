"""`EngineClient` over an engine in a process of its own, which is started again when it dies or gets stuck."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Final

import attrs
import structlog

from nanoserve.adapters.engine_process.client.pending_reply import PendingReply
from nanoserve.adapters.engine_process.client.process import EngineProcess
from nanoserve.adapters.engine_process.client.replies import remaining, start_error
from nanoserve.adapters.engine_process.client.reported_engine import ReportedEngine
from nanoserve.adapters.engine_process.client.supervision import TICK, Restarts, StallWatch
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import (
    Add,
    Command,
    Failed,
    Logged,
    Ready,
    Refused,
    Report,
    Start,
    Stop,
    Turned,
)
from nanoserve.ports.engine_wire import EngineWire
from nanoserve.ports.errors import BadValueError, EngineDiedError, EngineLoadingError, NanoserveError
from nanoserve.ports.request import Request

STALL_TIMEOUT: Final = 60.0
_FAREWELL: Final = 3.0
_DUMP_TIME: Final = 0.5
_RESTART_FACTOR: Final = 5.0
_RESTART_GRACE: Final = 60.0
_log = structlog.get_logger()


class RemoteEngine(ReportedEngine):
    """Keeps one engine process alive. Everything happens in the event loop that called `start`.

    Args:
        building: what the process builds its engine from, and how it logs on the standard error it shares with us.
        wire: how it is talked to.
        stall_timeout: seconds without progress after which it counts as stuck and is replaced.
        start_timeout: seconds that a restart may take; None allows five times what the first start took and a minute.
        command: the program to start; it is given one argument, the file descriptor of its connection.
    """

    def __init__(
        self,
        building: Start,
        *,
        wire: EngineWire,
        command: Sequence[str],
        stall_timeout: float = STALL_TIMEOUT,
        start_timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._building = building
        self._wire = wire
        self._stall_timeout = stall_timeout
        self._start_timeout = start_timeout
        self._start_limit: float | None = None
        self._lost_at = 0.0
        self._command = command
        self._restarts = Restarts()
        self._watch = StallWatch(stall_timeout, self._last_report)
        self._last_step = 0.0
        self._process: EngineProcess | None = None
        self._ready, self._stopping = asyncio.Event(), asyncio.Event()
        self._failure: NanoserveError | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def restarts(self) -> int:
        """As in `EngineClient`."""
        return self._restarts.total

    async def start(self) -> None:
        """As in `EngineClient`; a first start that fails is not tried again."""
        self._started = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise())
        await self._started

    async def stop(self) -> None:
        """As in `EngineClient`."""
        self._become(EngineStatus.STOPPED)
        self._replies.fail_all(EngineDiedError("the server has stopped"))
        if self._process is not None and self._ready.is_set():
            self._process.send(Stop())
            await self._process.wait(_FAREWELL)
        self._stopping.set()
        if self._supervisor is not None:
            await self._supervisor

    def submit(self, request: Request) -> PendingReply:
        """As in `EngineClient`; a request that cannot be sent at all is a `BadValueError`."""
        if self._status is EngineStatus.STARTING:
            raise EngineLoadingError("the engine is starting")
        if self._status in {EngineStatus.FAILED, EngineStatus.STOPPED}:
            raise EngineLoadingError("the engine has ended and is not started again", retry_after=30)
        reply = self._replies.open(request)
        if self._ready.is_set():
            self._hand_over(reply)
        return reply

    def _send(self, command: Command) -> None:
        if self._process is not None:
            self._process.send(command)

    def _hand_over(self, reply: PendingReply) -> None:
        assert self._process is not None
        try:
            waited = time.monotonic() - reply.submitted_at
            self._process.send(Add(remaining(reply.request, waited)))
        except BadValueError as error:
            self._replies.fail(reply, error)
        else:
            reply.num_engines += 1
            reply.engine_has_it = True

    def _take(self, report: Report) -> None:
        self._last_report = time.monotonic()
        match report:
            case Ready(facts):
                self._facts = facts
                self._ready.set()
            case Failed():
                self._failure = start_error(report)
            case Refused():
                self._replies.take(report)
            case Turned():
                self._take_turn(report)
            case Logged():
                self._tell(report)

    def _take_turn(self, report: Turned) -> None:
        if self._replies.take(report):
            self._restarts.note_answer()
        has_progressed = bool(report.events)
        if report.state is not None:
            has_progressed = has_progressed or report.state.last_step > self._last_step
            self._last_step = report.state.last_step
            self._totals.take(report.state)
        if has_progressed or not self._replies:
            self._watch.note_progress()

    async def _supervise(self) -> None:
        """One engine after another, until stopped, or until engines die as fast as they come."""
        try:
            while True:
                ending = await self._run_engine()
                self._totals.close_books()
                if self._status is EngineStatus.STOPPED:
                    return
                delay = self._bury(ending)
                if delay is None:
                    return
                await self._wait(delay)
        except Exception:  # noqa: BLE001 - clients must get an end, whatever it is
            _log.exception("the supervision of the engine has failed")
            self._give_up(EngineDiedError("the engine is no longer supervised"))

    async def _run_engine(self) -> str:
        """The whole life of one engine; returns how it ended."""
        engine = self._process = EngineProcess(self._wire, self._take)
        self._failure = None
        began = time.monotonic()
        try:
            await engine.start(self._command)
            engine.send(self._building)
            await self._wait(self._start_limit, self._ready, engine.gone)
            if self._ready.is_set() and self._status is not EngineStatus.STOPPED:
                self._note_ready(time.monotonic() - began)
                await self._watch_over(engine)
        except OSError as error:
            return f"it could not be started: {error}"
        finally:
            self._process = None
            self._ready.clear()
            self._lost_at = time.monotonic()
            ending = await engine.kill()
        return ending

    def _note_ready(self, seconds: float) -> None:
        assert self._started is not None
        if self._started.done():
            recovery = time.monotonic() - self._lost_at
            _log.warning("the engine is back", seconds=round(recovery, 3), restarts=self._restarts.total)
        else:
            self._start_limit = self._start_timeout or _RESTART_FACTOR * seconds + _RESTART_GRACE
            self._started.set_result(None)
        self._become(EngineStatus.READY)
        self._watch = StallWatch(self._stall_timeout, time.monotonic())
        self._resume_watch()
        for reply in self._replies.without_engine():
            self._hand_over(reply)

    async def _watch_over(self, engine: EngineProcess) -> None:
        """Return when the engine has died or is stuck."""
        while not await self._wait(TICK, engine.gone) and not engine.has_exited:
            if self._status is EngineStatus.READY and self._watch.is_stalled(time.monotonic()):
                self._become(EngineStatus.STALLED)
                _log.error(
                    "the engine is stuck; its stacks follow", pid=engine.pid, seconds=self._stall_timeout
                )
                engine.dump_stacks()
                await asyncio.sleep(_DUMP_TIME)
                return

    def _bury(self, ending: str) -> float | None:
        """Settle what the dead engine leaves behind; returns when to start the next one, None for never."""
        assert self._started is not None
        if not self._started.done():
            self._give_up(self._failure or EngineDiedError(f"the engine ended while it started ({ending})"))
            return None
        delay, reason = self._restarts.note_death(), str(self._failure or "unknown")
        if delay is None:
            _log.error("the engine keeps ending and is not started again", ending=ending, reason=reason)
            self._give_up(EngineDiedError("the engine keeps ending and is not started again"))
            return None
        self._become(EngineStatus.RESTARTING)
        aftermath = self._replies.lose_engine()
        counts = attrs.asdict(aftermath)
        _log.error("the engine has ended", ending=ending, reason=reason, restart_in=delay, **counts)
        return delay

    def _give_up(self, error: NanoserveError) -> None:
        assert self._started is not None
        self._become(EngineStatus.FAILED)
        if not self._started.done():
            self._started.set_exception(error)
        self._replies.fail_all(error)

    async def _wait(self, seconds: float | None, *events: asyncio.Event) -> bool:
        """Wait for the first of some events, or for `stop`, ending meanwhile what runs out of time."""
        happened = (*events, self._stopping)
        waits = [asyncio.create_task(event.wait()) for event in happened]
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while not any(event.is_set() for event in happened) and (left := deadline - time.monotonic()) > 0:
                self._replies.end_overdue(time.monotonic())
                await asyncio.wait(waits, timeout=min(left, TICK), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return any(event.is_set() for event in happened)
