"""An engine's process as its parent sees it: started, talked to, made to show its stacks, and ended."""

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

from nanoserve.ports.engine_link import Command, Report
from nanoserve.ports.engine_wire import EngineWire, WireError

_POLL: Final = 0.01
_LAST_WORDS: Final = 1.0
_DUMP_SIGNAL: Final = signal.SIGUSR1
_OWNER_ONLY: Final = 0o600


class EngineProcess(asyncio.Protocol):
    """One process, in a session of its own, and the one connection it has.

    The connection is a pair of Unix sockets without a name, so nothing else can ever connect; nothing about the
    engine stands on the command line.

    Attributes:
        pid: of the process.
        gone: set once the connection is lost.
    """

    def __init__(self, wire: EngineWire, take_report: Callable[[Report], None]) -> None:
        self.gone = asyncio.Event()
        self._wire = wire
        self._frames = wire.frames()
        self._take_report = take_report
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    async def start(self, command: Sequence[str]) -> None:
        """Start the command with the file descriptor of its connection as the last argument."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            for end in (ours, theirs):
                os.fchmod(end.fileno(), _OWNER_ONLY)
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program; starting takes milliseconds
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            unless_started.pop_all()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended, whatever became of its connection."""
        return self._process is None or self._process.poll() is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. An engine that sends what no engine sends is not listened to any more."""
        try:
            for body in self._frames.feed(data):
                self._take_report(self._wire.decode_report(body))
        except WireError as error:
            structlog.get_logger().exception("the engine cannot be understood", error=str(error))
            self._hang_up()

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self.gone.set()

    def send(self, command: Command) -> None:
        """Send a command; raises `BadValueError` where it cannot be sent. Ignored once the engine is gone."""
        frame = self._wire.encode_command(command)
        if self._transport is not None and not self.gone.is_set():
            self._transport.write(frame)

    def dump_stacks(self) -> None:
        """Make the process write the stacks of its threads to standard error; a stopped process cannot."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, _DUMP_SIGNAL)

    async def wait(self, seconds: float) -> bool:
        """Wait for the process to end by itself; whether it has."""
        deadline = time.monotonic() + seconds
        while not self.has_exited and time.monotonic() < deadline:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(_POLL)
        return self.has_exited

    async def kill(self) -> str:
        """End the process and all it has started, and wait until its memory is free; returns how it ended.

        What it sent before its end is still read. One that has hung up by itself is given a moment to leave by itself,
        so that what ended it is not taken for us.
        """
        process = self._process
        if process is None:
            return "never started"
        if self.gone.is_set():
            await self.wait(_LAST_WORDS)
        if not self.has_exited:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await self.wait(math.inf)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.gone.wait(), _LAST_WORDS)
        self._hang_up()
        return _ending(process.returncode)

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
