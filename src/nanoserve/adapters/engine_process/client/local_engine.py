"""`EngineClient` over an engine in a thread of this process, for debugging: nothing restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

import structlog

from nanoserve.adapters.engine_process.client.pending_reply import PendingReply
from nanoserve.adapters.engine_process.client.reported_engine import ReportedEngine
from nanoserve.ports.driving import EngineStatus, Link, LinkClosedError
from nanoserve.ports.engine_link import (
    Add,
    Command,
    Logged,
    Ready,
    Refused,
    Report,
    Stop,
    Turned,
)
from nanoserve.ports.errors import EngineDiedError, EngineLoadingError
from nanoserve.ports.request import Request


class _ThreadLink:
    """A `Link` without bytes: a queue in, calls into an event loop out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Report], None]) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._loop = loop
        self._take = take

    @property
    def unread(self) -> int:
        """Not known: the loop takes reports as they come."""
        return 0

    def receive(self, timeout: float) -> Sequence[Command]:
        """As in `Link`."""
        commands: list[Command] = []
        try:
            commands.append(self.commands.get(block=timeout > 0, timeout=timeout))
            while True:
                commands.append(self.commands.get_nowait())
        except queue.Empty:
            return commands

    def send(self, report: Report) -> None:
        """As in `Link`."""
        try:
            self._loop.call_soon_threadsafe(self._take, report)
        except RuntimeError as error:
            raise LinkClosedError("the event loop is closed") from error


class LocalEngine(ReportedEngine):
    """Runs `serve` with an engine in a thread; it shares the interpreter, and with it the time, of everything else here."""

    def __init__(self, serve: Callable[[Link], None], *, stall_timeout: float) -> None:
        super().__init__()
        self._serve = serve
        self._stall_timeout = stall_timeout
        self._link: _ThreadLink | None = None
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> EngineStatus:
        """As in `EngineClient`; an engine that has been silent for long is stalled, and may come back."""
        silent = time.monotonic() - self._last_report > self._stall_timeout
        return EngineStatus.STALLED if self._status is EngineStatus.READY and silent else self._status

    @property
    def restarts(self) -> int:
        """Always 0."""
        return 0

    async def start(self) -> None:
        """As in `EngineClient`."""
        loop = asyncio.get_running_loop()
        self._started = loop.create_future()
        self._link = _ThreadLink(loop, self._take)
        self._thread = threading.Thread(target=self._run, args=(self._link, loop), name="engine", daemon=True)
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """As in `EngineClient`; an engine stuck in a step is left behind."""
        self._become(EngineStatus.STOPPED)
        self._replies.fail_all(EngineDiedError("the server has stopped"))
        if self._thread is not None:
            self._send(Stop())
            await asyncio.to_thread(self._thread.join, 5.0)

    def submit(self, request: Request) -> PendingReply:
        """As in `EngineClient`."""
        if self._status is not EngineStatus.READY:
            raise EngineLoadingError(f"the engine is {self._status.value}")
        reply = self._replies.open(request)
        reply.engine_has_it = True
        self._send(Add(request))
        return reply

    def _send(self, command: Command) -> None:
        if self._link is not None:
            self._link.commands.put(command)

    def _take(self, report: Report) -> None:
        self._last_report = time.monotonic()
        match report:
            case Ready(facts):
                self._facts = facts
                self._become(EngineStatus.READY)
                self._resume_watch()
                if self._started is not None and not self._started.done():
                    self._started.set_result(None)
            case Refused() | Turned():
                self._replies.take(report)
                if isinstance(report, Turned) and report.state is not None:
                    self._totals.take(report.state)
            case Logged():
                self._tell(report)

    def _run(self, link: _ThreadLink, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._serve(link)
        except LinkClosedError:
            return
        except Exception as error:  # noqa: BLE001 - it must reach whoever waits for the engine
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: Exception) -> None:
        self._become(EngineStatus.FAILED)
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
            return
        structlog.get_logger().error("the engine has ended", error=repr(error))
        self._replies.fail_all(EngineDiedError("the engine has ended and is not started again"))
