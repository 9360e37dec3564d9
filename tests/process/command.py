"""Runs the `nanoserve` command as users do: as a process of its own, with nothing of ours in its environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from tests.patience import PATIENCE

PYTHON = (sys.executable, "-m")
COMMAND = (*PYTHON, "nanoserve")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without settings of ours, on one thread so that results repeat."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NANOSERVE_", "PYTHONUNBUFFERED"))
    }
    return kept | {"OMP_NUM_THREADS": "1"} | dict(extra or {})


def run(
    *arguments: str,
    command: Sequence[str] = COMMAND,
    stdin: bytes = b"",
    stdout: IO[bytes] | int = subprocess.PIPE,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end."""
    return subprocess.run(
        [*command, *arguments],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(extra),
        timeout=5 * PATIENCE,
        check=False,
    )


@contextlib.contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND) -> Iterator[subprocess.Popen[bytes]]:
    """One command that runs meanwhile; it is killed at the end if it still lives, so that a failed test leaves none behind."""
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def error_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The one line on standard error; fails where there is more, or a traceback."""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, done.stderr.decode()
    assert done.stdout == b""
    return lines[0].removeprefix("nanoserve: ")
