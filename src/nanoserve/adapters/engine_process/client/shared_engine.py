"""An engine that is kept alive here and used by other processes too: what is theirs is passed on unread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import structlog

from nanoserve.adapters.engine_process.client.engine_life import EngineLife
from nanoserve.adapters.engine_process.client.remote_engine import RemoteEngine
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Abort, AbortAll, Add, Follow, Moved, Opened, Report
from nanoserve.ports.engine_wire import EngineWire, WireError
from nanoserve.ports.request import FinishReason

MOST_UNREAD: Final = 64 << 20
"""Bytes that may wait for a member; one that reads so little is cut off."""
_PASSED_ON: Final = frozenset({Add.__name__, Abort.__name__})
_ANSWERED: Final = (FinishReason.STOP.value, FinishReason.LENGTH.value)


class Member(asyncio.Protocol):
    """Another process that uses the engine, and the connection to it.

    Attributes:
        opened: set once it takes requests of clients; gone: set once the connection is lost.
        engine: the number of the engine that its commands are for.
    """

    def __init__(self, owner: str, wire: EngineWire, obey: Callable[[Member, str, bytes], None]) -> None:
        self.owner = owner
        self.opened = asyncio.Event()
        self.gone = asyncio.Event()
        self.engine = -1
        self._wire = wire
        self._frames = wire.frames()
        self._obey = obey
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            for body in self._frames.feed(data):
                self._take(body)
        except WireError as error:
            structlog.get_logger().exception(
                "a member cannot be understood", owner=self.owner, error=str(error)
            )
            self.cut_off()

    def _take(self, body: bytes) -> None:
        kind, _ = self._wire.address(body)
        if kind == Follow.__name__:
            self.engine = cast("Follow", self._wire.decode_command(body)).engine
        elif kind == Opened.__name__:
            self.opened.set()
        else:
            self._obey(self, kind, self._wire.framed(body))

    def tell(self, report: Report) -> None:
        """Send a report."""
        self.pass_on(self._wire.encode_report(report))

    def pass_on(self, frame: bytes) -> None:
        """Send a report that is a frame already."""
        if self._transport is None or self.gone.is_set():
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            structlog.get_logger().error("a member does not read and is cut off", owner=self.owner)
            self.cut_off()

    def cut_off(self) -> None:
        """End the connection, and with it the member."""
        if self._transport is not None:
            self._transport.abort()


class SharedEngine(RemoteEngine):
    """A `RemoteEngine` that other processes use as its members; its ledger counts theirs too.

    Members are told what becomes of the engine, and keep their own requests through it. The engine tells whose its
    events are by the requests' ids.
    """

    def __init__(self, *arguments: Any, wire: EngineWire, **options: Any) -> None:
        super().__init__(*arguments, wire=wire, **options)
        self._wire = wire
        self._members: dict[str, Member] = {}
        self._answers = 0

    async def admit(self, owner: str, connection: socket.socket) -> Member:
        """Let another process use the engine; its requests begin with the owner's name and a dot."""
        member = Member(owner, self._wire, self._obey)
        await asyncio.get_running_loop().create_unix_connection(lambda: member, sock=connection)
        self._members[owner] = member
        member.tell(self._news())
        return member

    def dismiss(self, member: Member) -> None:
        """A member has ended: nothing is computed for it any more."""
        del self._members[member.owner]
        self._send(AbortAll(member.owner))

    def _obey(self, member: Member, kind: str, frame: bytes) -> None:
        """Pass a command on, unless it was for an engine that is no more: then its sender learns of that and sends it again."""
        if kind not in _PASSED_ON:
            raise WireError(f"a member sends no {kind}")
        if self._engine is not None and member.engine == self.restarts:
            self._engine.pass_on(frame)

    def _pass_on(self, owner: str, frame: bytes) -> None:
        if member := self._members.get(owner):
            member.pass_on(frame)

    def _news(self) -> Moved:
        return Moved(self.status.value, self.restarts, self.facts)

    def _move(self, status: EngineStatus) -> None:
        super()._move(status)
        for member in self._members.values():
            member.tell(self._news())

    def _is_idle(self) -> bool:
        return super()._is_idle() and not self._totals.has_work

    def _welcome(self, life: EngineLife) -> None:
        life.process.on_foreign = self._pass_on
        super()._welcome(life)

    def _after_death(self, ending: str, life: EngineLife | None) -> float | None:
        answers = sum(self._ledger.books().finished[each] for each in _ANSWERED)
        if answers > self._answers:
            self._answers = answers
            self._note_answer()
        return super()._after_death(ending, life)
