"""`EngineClient` over an engine that another process keeps alive and shares."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from nanoserve.adapters.engine_process.client.replaced_engine import ReplacedEngine
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Command, Follow, Moved, Opened, Report
from nanoserve.ports.engine_wire import EngineWire
from nanoserve.ports.errors import EngineDiedError


class JoinedEngine(ReplacedEngine, asyncio.Protocol):
    """A member's end. It supervises nothing: it is told what has become of the engine, and keeps its own requests through it.

    Attributes:
        gone: set once the engine has stopped for good, or the process that kept it alive has ended.
    """

    def __init__(self, connection: socket.socket, *, wire: EngineWire, counts: Counts | None = None) -> None:
        super().__init__(counts)
        self.gone = asyncio.Event()
        self._connection = connection
        self._wire = wire
        self._frames = wire.frames()
        self._transport: asyncio.WriteTransport | None = None
        self._number = 0
        self._overdue: asyncio.Task[None] | None = None

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""
        return self._number

    async def start(self) -> None:
        """Wait until the engine is ready."""
        self._overdue = asyncio.create_task(self._end_overdue())
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self._connection)
        await self._until_settled()

    async def stop(self) -> None:
        """Leave the engine to the others; what is running ends with `EngineDiedError`."""
        self._leave()
        if self._overdue is not None:
            self._overdue.cancel()
        if self._transport is not None:
            self._transport.close()

    def open(self) -> None:
        """Say that requests of clients are taken from now on."""
        self._send(Opened())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self._leave()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        for body in self._frames.feed(data):
            self._take(self._wire.decode_report(body))

    @property
    def _has_engine(self) -> bool:
        return self._status in {EngineStatus.READY, EngineStatus.STALLED}

    def _send(self, command: Command) -> None:
        frame = self._wire.encode_command(command)
        if self._transport is not None:
            self._transport.write(frame)

    def _take(self, report: Report) -> None:
        super()._take(report)
        if isinstance(report, Moved) and self._status is not EngineStatus.STOPPED:
            self._facts, self._number = report.facts, report.restarts
            self._follow(EngineStatus(report.status))

    def _follow(self, status: EngineStatus) -> None:
        """Do what the engine's new status asks for; a member that comes while the engine is away has lost it like all others."""
        if self._status is EngineStatus.STARTING and status in {
            EngineStatus.STALLED,
            EngineStatus.RESTARTING,
        }:
            self._follow(EngineStatus.READY)
        match status:
            case EngineStatus.READY:
                self._send(Follow(self._number))
                self._move(status)
                self._hand_over_waiting()
            case EngineStatus.STALLED | EngineStatus.RESTARTING:
                self._move(status)
                if status is EngineStatus.RESTARTING:
                    self._replies.lose_engine()
            case EngineStatus.FAILED:
                self._close(status, EngineDiedError("the engine keeps ending and is not started again"))
            case EngineStatus.STOPPED:
                self._leave()

    def _leave(self) -> None:
        if self._status is not EngineStatus.STOPPED:
            self._close(EngineStatus.STOPPED, EngineDiedError("the server has stopped"))
        self.gone.set()
