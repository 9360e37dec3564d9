"""A keeper whose engine another process keeps alive and shares."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.line import Line
from nanoserve.adapters.engine_process.wire.codec import decode_report, encode_command
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Command, Follow, Moved, Opened
from nanoserve.ports.errors import EngineDiedError


class Membership:
    """A member's end. It supervises nothing: it is told what has become of the engine.

    Attributes:
        restarts: how often the engine had to be started again.
        gone: set once the engine has stopped for good, or the process that kept it alive has ended.
    """

    _engine: KeptEngine[Any]

    def __init__(self, connection: socket.socket) -> None:
        self.restarts = 0
        self.gone = asyncio.Event()
        self._connection = connection
        self._line = Line(self._take, peer="the process of the engine", on_lost=self._leave)

    async def start(self, engine: KeptEngine[Any], /) -> None:
        """Join; the first news tell whether the engine is ready."""
        self._engine = engine
        await self._line.open(self._connection)

    async def stop(self) -> None:
        """Leave the engine to the others."""
        self.gone.set()
        self._line.close()

    def open(self) -> None:
        """Say that requests of clients are taken from now on."""
        self._send(Opened())

    def _send(self, command: Command) -> None:
        self._line.send(encode_command(command))

    def _take(self, body: bytes) -> None:
        report = decode_report(body)
        self._engine.take(report)
        if isinstance(report, Moved) and self._engine.status is not EngineStatus.STOPPED:
            self._engine.facts, self.restarts = report.facts, report.restarts
            self._follow(EngineStatus(report.status))

    def _follow(self, status: EngineStatus) -> None:
        """Do what the engine's new status asks for; a member that comes while the engine is away has lost it like all others."""
        is_away = status in {EngineStatus.STALLED, EngineStatus.RESTARTING}
        if is_away and self._engine.status is EngineStatus.STARTING:
            self._follow(EngineStatus.READY)
        match status:
            case EngineStatus.READY:
                self._send(Follow(self.restarts))
                self._engine.welcome(self._send)
            case EngineStatus.STALLED:
                self._engine.move(status)
            case EngineStatus.RESTARTING:
                self._engine.move(status)
                self._engine.requests.lose_engine()
            case EngineStatus.FAILED:
                error = EngineDiedError("the engine keeps ending and is not started again")
                self._engine.close(status, error)
            case EngineStatus.STOPPED:
                self._leave()

    def _leave(self) -> None:
        self._engine.leave()
        self.gone.set()
