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
from nanoserve.ports.engine_link import Add, Command, Ready, Report, Stop
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
        """The commands so far; waits for the first."""
        commands: list[Command] = []
        try:
            commands.append(self.commands.get(block=timeout > 0, timeout=timeout))
            while True:
                commands.append(self.commands.get_nowait())
        except queue.Empty:
            return commands

    def send(self, report: Report) -> None:
        """Pass it to the event loop."""
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
        self._life: tuple[_ThreadLink, threading.Thread] | None = None

    @property
    def status(self) -> EngineStatus:
        """An engine that has been silent for long is stalled, and may come back."""
        silent = time.monotonic() - self._last_report > self._stall_timeout
        return EngineStatus.STALLED if self._status is EngineStatus.READY and silent else self._status

    @property
    def restarts(self) -> int:
        """Always 0."""
        return 0

    async def start(self) -> None:
        """Start the thread and wait until its engine is ready."""
        loop = asyncio.get_running_loop()
        link = _ThreadLink(loop, self._take)
        thread = threading.Thread(target=self._run, args=(link, loop), name="engine", daemon=True)
        self._life = (link, thread)
        thread.start()
        await self._until_settled()

    async def stop(self) -> None:
        """End the engine; one that is stuck in a step is left behind."""
        if self._status is not EngineStatus.STOPPED:
            self._close(EngineStatus.STOPPED, EngineDiedError("the server has stopped"))
        if self._life is not None:
            link, thread = self._life
            link.commands.put(Stop())
            await asyncio.to_thread(thread.join, 5.0)

    def submit(self, request: Request) -> PendingReply:
        """Hand a request over."""
        if self._status is not EngineStatus.READY:
            raise EngineLoadingError(f"the engine is {self._status.value}")
        reply = self._replies.open(request)
        reply.engine_has_it = True
        self._send(Add(request))
        return reply

    def _send(self, command: Command) -> None:
        if self._life is not None:
            self._life[0].commands.put(command)

    def _take(self, report: Report) -> None:
        super()._take(report)
        if isinstance(report, Ready) and self._status is EngineStatus.STARTING:
            self._move(EngineStatus.READY)

    def _run(self, link: _ThreadLink, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._serve(link)
        except LinkClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, requests must not wait for ever
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no request waits
                loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: Exception) -> None:
        if self._status is EngineStatus.STOPPED:
            return
        died = EngineDiedError("the engine has ended and is not started again")
        if self._status is EngineStatus.READY:
            structlog.get_logger().error("the engine has ended", error=repr(error))
        self._close(EngineStatus.FAILED, died, why=error)
