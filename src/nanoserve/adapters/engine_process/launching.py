"""Starting programs of ours: none of them runs a file of the working directory, and a start that fails is tried again."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

DUMP_SIGNAL: Final = signal.SIGUSR1
"""Makes the host write the stacks of all its threads to standard error, whatever it is stuck in."""
_OWNER_ONLY: Final = 0o600
_PAUSES: Final = (0.1, 0.3)
"""Seconds before another try. The caller waits for them: they are rare, and short."""

_PR_SET_PDEATHSIG: Final = 1


def own_program(module: str) -> tuple[str, ...]:
    """The command that runs a module. `-P` keeps the working directory off its path, where a file may have any module's name."""
    return (sys.executable, "-P", "-m", module)


def start_program(
    command: Sequence[str], descriptors: Sequence[int], **options: Any
) -> subprocess.Popen[bytes]:
    """Start a command with file descriptors that it inherits as its last arguments; `options` are those of `Popen`.

    A machine may refuse a process for a moment (EAGAIN, EFAULT). Raises the `OSError` of the last try.
    """
    for pause in (*_PAUSES, None):
        try:
            return subprocess.Popen(  # noqa: S603 - our own program
                [*command, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                **options,
            )
        except OSError as error:
            if pause is None:
                raise
            import structlog  # noqa: PLC0415 - slow to import, and this is rare

            structlog.get_logger().warning(
                "a process could not be started", program=command[-1], error=str(error), again_in=pause
            )
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


@attrs.frozen(eq=False)
class Launched:
    """A process in a session of its own, and our end of the one connection it has.

    The connection is a pair of Unix sockets without a name, so nothing else can ever connect.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def end(self) -> None:
        """End the process with all it has started, unless it has ended."""
        self.connection.close()
        kill_group(self.process)
        self.process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process in a session of its own, and all it has started, unless it has ended; it is to be waited for."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def launch(command: Sequence[str]) -> Launched:
    """Start a command with the file descriptor of its connection as the last argument. Raises `OSError`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as unless_started, theirs:
        unless_started.enter_context(ours)
        for end in (ours, theirs):
            os.fchmod(end.fileno(), _OWNER_ONLY)
        launched = Launched(start_program(command, [theirs.fileno()], start_new_session=True), ours)
        unless_started.pop_all()
    return launched


def become_host(connection: int | None = None) -> None:
    """End only when the parent says so, or has ended: at once if it has closed its end of this `connection`, a file descriptor.

    A terminal's Ctrl-C and a service manager's SIGTERM may reach every process of the server; the parent drains first and closes the connection then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)
    faulthandler.register(DUMP_SIGNAL, sys.stderr, all_threads=True)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if connection is not None:
        (closed := select.poll()).register(connection, 0)
        if closed.poll(0):
            os._exit(0)
