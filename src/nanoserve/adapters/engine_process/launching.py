"""Starting programs of ours: none of them runs a file of the working directory, and a start that fails is tried again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog

_PAUSES: Final = (0.1, 0.3)
"""Seconds before another try. The caller waits for them: they are rare, and short."""


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
            structlog.get_logger().warning(
                "a process could not be started", program=command[-1], error=str(error), again_in=pause
            )
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")
