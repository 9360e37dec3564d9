"""A keeper whose engine runs in a thread of this process, for debugging: nothing restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import structlog

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.line import Line
from nanoserve.adapters.engine_process.host.process import PATIENCE, SocketLink
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.ports.driving import EngineStatus, Link, LinkClosedError
from nanoserve.ports.engine_link import Command, Ready, Stop
from nanoserve.ports.errors import EngineDiedError


class EngineThread:
    """Runs `serve` in a thread; its engine shares the interpreter, and with it the time, of everything else here."""

    restarts = 0
    _engine: KeptEngine[Any]

    def __init__(self, serve: Callable[[Link], None]) -> None:
        self._serve = serve
        self._line = Line(self._take, peer="engine", on_lost=self._lose)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    async def start(self, engine: KeptEngine[Any], /) -> None:
        self._engine = engine
        ours, theirs = socket.socketpair()
        await self._line.open(ours)
        self._thread = threading.Thread(target=self._run, args=(theirs,), name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the engine; one that is stuck in a step is left behind."""
        if self._thread is not None:
            self._send(Stop())
            await asyncio.to_thread(self._thread.join, 5.0)
            self._line.cut_off()

    def _send(self, command: Command) -> None:
        self._line.send(codec.encode_command(command))

    def _take(self, body: bytes) -> None:
        report = codec.decode_report(body)
        self._engine.take(report)
        if isinstance(report, Ready) and self._engine.status is EngineStatus.STARTING:
            self._engine.welcome(self._send)

    def _run(self, connection: socket.socket) -> None:
        with connection:
            link = SocketLink(connection)
            try:
                self._serve(link)
            except Exception as error:  # noqa: BLE001 - whatever it is, requests must not wait for ever
                self._error = None if isinstance(error, LinkClosedError) else error
            with contextlib.suppress(LinkClosedError):
                link.drain(PATIENCE)

    def _lose(self) -> None:
        """The thread has ended: where an error was why, so do the requests."""
        if self._error is None or self._engine.status is EngineStatus.STOPPED:
            return
        if self._engine.status is not EngineStatus.STARTING:
            structlog.get_logger().error("the engine has ended", error=repr(self._error))
        died = EngineDiedError("the engine has ended and is not started again")
        self._engine.close(EngineStatus.FAILED, died, why=self._error)
