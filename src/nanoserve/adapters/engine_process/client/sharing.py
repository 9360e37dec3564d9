"""An engine that several processes use: one keeps it alive and passes the others' messages on unread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.line import Line
from nanoserve.adapters.engine_process.client.supervisor import Supervisor
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.ports.driving import EngineClient, EngineStatus
from nanoserve.ports.engine_link import Abort, AbortAll, Add, Command, Follow, Moved, Opened
from nanoserve.ports.errors import EngineDiedError

MOST_UNREAD: Final = 64 << 20
"""Bytes that may wait for a member; one that reads so little is cut off."""
_PASSED_ON: Final = frozenset({Add.__name__, Abort.__name__})


class Member:
    """Another process that uses the engine: `opened` once it takes requests, `gone` once it is lost; `engine` is the one that its commands are for, by number."""

    def __init__(self, owner: str, obey: Callable[[Member, str, bytes], None]) -> None:
        self.owner = owner
        self.line = Line(self._take, peer=owner, most_unread=MOST_UNREAD)
        self.opened = asyncio.Event()
        self.gone = self.line.gone
        self.engine = -1
        self._obey = obey

    def _take(self, body: bytes) -> None:
        kind, _ = codec.address(body)
        if kind == Follow.__name__:
            self.engine = cast("Follow", codec.decode_command(body)).engine
        elif kind == Opened.__name__:
            self.opened.set()
        else:
            self._obey(self, kind, codec.framed(body))


class Sharing:
    """Lets other processes use an engine as its members; its ledger counts theirs too.

    Members get the engine's status, and keep their own requests. The ids of requests name the owners of events.
    """

    def __init__(self, engine: EngineClient) -> None:
        assert isinstance(engine, KeptEngine)
        assert isinstance(engine.keeper, Supervisor)
        self.engine: KeptEngine[Supervisor] = engine
        self._members: dict[str, Member] = {}
        engine.on_move = self._tell_all
        engine.keeper.on_foreign = self._pass_on

    async def admit(self, owner: str, connection: socket.socket) -> Member:
        """Let another process use the engine; its requests begin with the owner's name and a dot."""
        member = Member(owner, self._obey)
        await member.line.open(connection)
        self._members[owner] = member
        member.line.send(self._news())
        return member

    def dismiss(self, member: Member) -> None:
        """A member has ended: nothing is computed for it any more."""
        del self._members[member.owner]
        self.engine.requests.send(AbortAll(member.owner))

    def _obey(self, member: Member, kind: str, frame: bytes) -> None:
        """Pass a command on, unless it was for an engine that is no more: then its sender learns of that and sends it again."""
        if kind not in _PASSED_ON:
            raise codec.WireError(f"a member sends no {kind}")
        if member.engine == self.engine.restarts:
            self.engine.keeper.pass_on(frame)

    def _pass_on(self, owner: str, frame: bytes) -> None:
        if member := self._members.get(owner):
            member.line.send(frame)

    def _tell_all(self) -> None:
        news = self._news()
        for member in self._members.values():
            member.line.send(news)

    def _news(self) -> bytes:
        engine = self.engine
        return codec.encode_report(
            Moved(engine.status.value, engine.restarts, engine.facts, engine.ledger.read().running > 0)
        )


class Membership:
    """A member's end. It supervises nothing: it is told what has become of the engine. `gone` is set once that has stopped for good, or its keeper has ended."""

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
        self._line.send(codec.encode_command(command))

    def _take(self, body: bytes) -> None:
        report = codec.decode_report(body)
        self._engine.take(report)
        if isinstance(report, Moved) and self._engine.status is not EngineStatus.STOPPED:
            self._engine.facts, self.restarts = report.facts, report.restarts
            self._follow(EngineStatus(report.status), any_ran=report.any_ran)

    def _follow(self, status: EngineStatus, *, any_ran: bool = False) -> None:
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
                self._engine.requests.lose_engine(any_ran=any_ran)
            case EngineStatus.FAILED:
                error = EngineDiedError("the engine keeps ending and is not started again")
                self._engine.close(status, error)
            case EngineStatus.STOPPED:
                self._leave()

    def _leave(self) -> None:
        self._engine.leave()
        self.gone.set()
