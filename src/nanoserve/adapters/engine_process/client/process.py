"""A host's process as its parent sees it: started, sent commands, made to show its stacks, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import structlog

from nanoserve.adapters.engine_process import DUMP_SIGNAL
from nanoserve.adapters.engine_process.launching import start_program
from nanoserve.ports.engine_link import Command, Prepared, Report
from nanoserve.ports.engine_wire import EngineWire, WireError

_POLL: Final = 0.01
_LAST_WORDS: Final = 1.0
_OWNER_ONLY: Final = 0o600


class EngineProcess(asyncio.Protocol):
    """One process, in a session of its own, and the one connection it has; made by `launch`.

    The connection is a pair of Unix sockets without a name, so nothing else can ever connect; nothing about the
    engine stands on the command line.

    Attributes:
        gone: set once the connection is lost.
        on_report: called with each report.
        on_foreign: called with the owner and the frame of what is for another process; None where there is none.
        is_prepared: whether it has said that it waits for `Start` with everything imported.
    """

    def __init__(self, process: subprocess.Popen[bytes], wire: EngineWire) -> None:
        self.gone = asyncio.Event()
        self.on_report: Callable[[Report], None] = self._note
        self.on_foreign: Callable[[str, bytes], None] | None = None
        self.is_prepared = False
        self._process = process
        self._wire = wire
        self._frames = wire.frames()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def launch(cls, command: Sequence[str], wire: EngineWire) -> EngineProcess:
        """Start the command with the file descriptor of its connection as the last argument. Raises `OSError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            for end in (ours, theirs):
                os.fchmod(end.fileno(), _OWNER_ONLY)
            process = start_program(command, [theirs.fileno()], start_new_session=True)
            started = cls(process, wire)
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: started, sock=ours)
            except BaseException:
                await started.kill()
                raise
            unless_started.pop_all()
        return started

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has hung up or exited."""
        return self.gone.is_set() or self._has_exited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. A process that sends what no engine sends is cut off."""
        try:
            for body in self._frames.feed(data):
                if self.on_foreign is not None and (owner := self._wire.address(body)[1]):
                    self.on_foreign(owner, self._wire.framed(body))
                else:
                    self.on_report(self._wire.decode_report(body))
        except WireError as error:
            structlog.get_logger().exception("the engine cannot be understood", error=str(error))
            self._hang_up()

    def _note(self, report: Report) -> None:
        """Of one that is no engine yet."""
        self.is_prepared = isinstance(report, Prepared)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self.gone.set()

    def send(self, command: Command) -> None:
        """Send a command; raises `BadValueError` where it cannot be sent. Ignored once the process is gone."""
        self.pass_on(self._wire.encode_command(command))

    def pass_on(self, frame: bytes) -> None:
        """Send a command that is a frame already. Ignored once the process is gone."""
        if self._transport is not None and not self.gone.is_set():
            self._transport.write(frame)

    def dump_stacks(self) -> None:
        """Make the process write the stacks of its threads to standard error; a stopped process cannot."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)

    async def kill(self) -> str:
        """End the process and all it has started, and wait until its memory is free; returns how it ended.

        What it sent before its end is still read. One that has hung up by itself is given a moment to leave by itself,
        so that its own reason to end is what is reported.
        """
        try:
            if self.gone.is_set():
                await self._wait(_LAST_WORDS)
            self._end()
            await self._wait(math.inf)
        finally:  # whoever waits here may be cancelled
            self._end()
            self._process.wait()
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):  # `wait_for` swallows a cancelling in Python 3.11
                    await self.gone.wait()
        self._hang_up()
        return _ending(self._process.returncode)

    def _end(self) -> None:
        if not self._has_exited:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _wait(self, seconds: float) -> None:
        """Wait for the process to end by itself."""
        deadline = time.monotonic() + seconds
        while not self._has_exited and time.monotonic() < deadline:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(_POLL)

    @property
    def _has_exited(self) -> bool:
        return self._process.poll() is not None

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
