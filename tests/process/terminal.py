"""A command behind a pseudo-terminal: keys go in, the screen's bytes come out."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

import attrs

from tests.patience import PATIENCE
from tests.process.command import COMMAND, environment

_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])")


@attrs.define
class Terminal:
    """A running command; `seen` is everything it has shown, without escape sequences and carriage returns."""

    process: subprocess.Popen[bytes]
    keyboard: int
    raw: bytes = b""

    @property
    def seen(self) -> str:
        return _ESCAPES.sub(b"", self.raw).decode(errors="replace").replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Where the text ends in what was seen; fails where it does not come in time."""
        limit = time.monotonic() + PATIENCE
        while (found := self.seen.find(text, after)) < 0:
            assert time.monotonic() < limit, f"{text!r} did not come in {self.seen[after:]!r}"
            assert self._read(0.5) or self.process.poll() is None, f"{text!r} did not come: {self.seen!r}"
        return found + len(text)

    def wait_for_more(self, *, than: int) -> int:
        """Until so many characters were seen; returns how many there are."""
        limit = time.monotonic() + PATIENCE
        while len(self.seen) < than:
            assert time.monotonic() < limit, f"nothing more came: {self.seen!r}"
            self._read(0.5)
        return len(self.seen)

    def leave(self, keys: str) -> int:
        """Type keys that end the command, and again if nothing happens; returns the exit code.

        A Ctrl-C in the microseconds between a prompt and Python's waiting for keys is noticed with the next key only.
        """
        limit, again = time.monotonic() + PATIENCE, 0.0
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"still running: {self.seen!r}"
            if time.monotonic() >= again:
                self.type(keys)
                again = time.monotonic() + 3
            self._read(0.1)
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self.keyboard], [], [], seconds)[0]:
            return False
        with contextlib.suppress(OSError):  # the other side is closed
            piece = os.read(self.keyboard, 65_536)
            self.raw += piece
            return bool(piece)
        return False


@contextlib.contextmanager
def terminal(
    *arguments: str, command: Sequence[str] = COMMAND, extra: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Start a command whose standard streams are a terminal of its own, so that Ctrl-C reaches it as it does a user's."""
    keyboard, screen = pty.openpty()
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env=environment({"TERM": "xterm", "COLUMNS": "100", "LINES": "40", **(extra or {})}),
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call, no lock that another thread could hold
    )
    os.close(screen)
    opened = Terminal(process, keyboard)
    try:
        yield opened
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(keyboard)


def _take_terminal() -> None:
    """Make standard input the session's controlling terminal."""
    import fcntl  # noqa: PLC0415 - in the child only
    import termios  # noqa: PLC0415 - in the child only

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
