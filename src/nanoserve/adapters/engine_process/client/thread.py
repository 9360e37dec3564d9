"""A keeper whose engine runs in a thread of this process, for debugging: nothing restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.ports.driving import EngineStatus, Link, LinkClosedError
from nanoserve.ports.engine_link import Command, Ready, Report, Stop
from nanoserve.ports.errors import EngineDiedError


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


class EngineThread:
    """Runs `serve` in a thread; its engine shares the interpreter, and with it the time, of everything else here."""

    _engine: KeptEngine[Any]

    def __init__(self, serve: Callable[[Link], None]) -> None:
        self._serve = serve
        self._life: tuple[_ThreadLink, threading.Thread] | None = None

    @property
    def restarts(self) -> int:
        """Always 0."""
        return 0

    async def start(self, engine: KeptEngine[Any], /) -> None:
        """Start the thread."""
        self._engine = engine
        loop = asyncio.get_running_loop()
        link = _ThreadLink(loop, self._take)
        thread = threading.Thread(target=self._run, args=(link, loop), name="engine", daemon=True)
        self._life = (link, thread)
        thread.start()

    async def stop(self) -> None:
        """End the engine; one that is stuck in a step is left behind."""
        if self._life is not None:
            link, thread = self._life
            link.commands.put(Stop())
            await asyncio.to_thread(thread.join, 5.0)

    def _take(self, report: Report) -> None:
        self._engine.take(report)
        is_first = isinstance(report, Ready) and self._engine.status is EngineStatus.STARTING
        if is_first and self._life is not None:
            self._engine.welcome(self._life[0].commands.put)

    def _run(self, link: _ThreadLink, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._serve(link)
        except LinkClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, requests must not wait for ever
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no request waits
                loop.call_soon_threadsafe(self._give_up, error)

    def _give_up(self, error: Exception) -> None:
        status = self._engine.status
        if status is EngineStatus.STOPPED:
            return
        if status is not EngineStatus.STARTING:
            structlog.get_logger().error("the engine has ended", error=repr(error))
        died = EngineDiedError("the engine has ended and is not started again")
        self._engine.close(EngineStatus.FAILED, died, why=error)
