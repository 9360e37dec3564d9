"""The HTTP processes of a server as its main process sees them: started, replaced when they die, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import structlog

from nanoserve.entrypoints.app.measurements import RESTARTS
from nanoserve.entrypoints.compose.counting import SharedCounting
from nanoserve.entrypoints.compose.engine_client import (
    Member,
    Sharing,
    end_process,
    first_of,
    own_program,
    start_program,
    until_ended,
)
from nanoserve.entrypoints.server.http.security import KeyRing
from nanoserve.entrypoints.server.serving import Serving
from nanoserve.entrypoints.server.sockets import StartError
from nanoserve.entrypoints.server.workers.program import WorkerStart, encode_start
from nanoserve.entrypoints.server.workers.relay import RelayedApp
from nanoserve.ports.driving import EngineStatus

PROGRAM: Final = own_program("nanoserve.entrypoints.server.workers.program")
_FAREWELL: Final = 5.0
"""Seconds that the processes are given to end by themselves once the engine has stopped."""
_LAST_WORDS: Final = 1.0
_LONGEST_DELAY: Final = 30.0
_log = structlog.get_logger()


@attrs.frozen(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    member: Member
    door: socket.socket


@attrs.define(eq=False)
class Workers:
    """Keeps one process for each group of sockets.

    Args:
        settings, keys, folder: as in `WorkerStart`.
        sharing: of the engine; counting: where they count.
        app: answers what they do not answer themselves.
    """

    _settings: Serving
    _keys: KeyRing
    _folder: str
    _sharing: Sharing
    _counting: SharedCounting
    _app: RelayedApp
    _groups: Sequence[Sequence[socket.socket]]
    _names: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _living: dict[int, _Worker] = attrs.field(factory=dict, init=False)
    _keeping: list[asyncio.Task[None]] = attrs.field(factory=list, init=False)

    async def start(self) -> None:
        """Start them all; they take connections soon, and requests once the engine is ready. Raises `StartError`."""
        try:
            for number in range(1, len(self._groups) + 1):
                await self._launch(number)
        except OSError as error:
            raise StartError(f"cannot start an HTTP process: {error}", "HTTP_WORKER_ENDED") from None
        self._keeping = [asyncio.create_task(self._keep(number)) for number in self._living]

    async def until_open(self) -> None:
        """Return once all of them take requests; raises `StartError` if one ends before that."""
        for worker in list(self._living.values()):
            await first_of(worker.member.opened, worker.member.gone)
            if not worker.member.opened.is_set():
                message = "an HTTP process ended while it started; see the messages above"
                raise StartError(message, "HTTP_WORKER_ENDED")

    async def stop(self) -> None:
        """Wait until they have ended, which they do when the engine stops; those that take too long are killed."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                for worker in self._living.values():
                    await until_ended(worker.process)
        for worker in self._living.values():
            await self._end(worker)

    async def _launch(self, number: int) -> None:
        owner = f"w{next(self._names)}"
        start = WorkerStart(
            settings=self._settings,
            keys=tuple(self._keys),
            folder=self._folder,
            number=number,
            is_loading=self._sharing.engine.status is EngineStatus.STARTING,
            owner=owner,
        )
        (link, their_link), (door, their_door) = socket.socketpair(), socket.socketpair()
        with their_link, their_door:
            descriptors = (
                *(their_link.fileno(), their_door.fileno(), self._counting.descriptor),
                *(each.fileno() for each in self._groups[number - 1]),
            )
            try:
                process = start_program(PROGRAM, descriptors, start_new_session=True)
            except OSError:
                link.close()
                door.close()
                raise
        link.setblocking(False)
        with contextlib.suppress(ConnectionError):  # one that has ended already is noticed as any other
            await asyncio.get_running_loop().sock_sendall(link, encode_start(start))
        self._living[number] = _Worker(process, await self._sharing.admit(owner, link), door)
        self._app.watch(door)

    async def _keep(self, number: int) -> None:
        """One process after another, until the engine has stopped."""
        delay = 0.0
        while True:
            worker = self._living[number]
            await worker.member.gone.wait()
            if self._sharing.engine.status is EngineStatus.STOPPED:
                return
            ending = await self._end(worker)
            self._sharing.dismiss(worker.member)
            lost = self._counting.end(number)
            delay = 0.0 if worker.member.opened.is_set() else _longer(delay)
            _log.error("an HTTP process has ended", number=number, ending=ending, lost=lost, restart_in=delay)
            await asyncio.sleep(delay)
            while not await self._could_launch(number):
                delay = _longer(delay)
                await asyncio.sleep(delay)
            self._counting.of(0).tallies.processes.add(RESTARTS)

    async def _could_launch(self, number: int) -> bool:
        try:
            await self._launch(number)
        except OSError as error:
            _log.error("an HTTP process could not be started", number=number, reason=str(error))
            return False
        return True

    async def _end(self, worker: _Worker) -> int:
        """End a process that does not end by itself; returns its exit code, which is negative for a signal."""
        await end_process(worker.process, _LAST_WORDS)
        worker.member.line.cut_off()
        self._app.leave(worker.door)
        return int(worker.process.returncode)


def _longer(delay: float) -> float:
    return min(max(2 * delay, 1.0), _LONGEST_DELAY)
