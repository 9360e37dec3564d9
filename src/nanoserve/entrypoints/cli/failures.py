"""From an exception to one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import attrs
import rich_click as click

from nanoserve.entrypoints.compose.printable import printable
from nanoserve.ports.errors import BadValueError, NanoserveError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141


@attrs.define
class Reporting:
    """How errors are shown; a command refines it once it has read its settings."""

    debug: bool = False


def report(error: BaseException, reporting: Reporting) -> int:
    """Print an error in one line, and return the exit code; control characters are escaped."""
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return CLOSED_PIPE
    if reporting.debug:
        traceback.print_exception(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return _say("interrupted", INTERRUPTED)
    if isinstance(error, click.ClickException):
        return _say(error.format_message(), USAGE)
    if isinstance(error, OSError):
        return _say(f"{error.filename or 'output'}: {error.strerror or error}", FAILED)
    if isinstance(error, NanoserveError):
        return _say(str(error), USAGE if isinstance(error, BadValueError) else FAILED)
    hint = "" if reporting.debug else " (--debug shows where)"
    return _say(f"internal error: {type(error).__name__}: {error}{hint}", FAILED)


def flush_output(code: int) -> int:
    """Write what standard output still holds; returns the exit code, which is that of this failure if nothing failed before."""
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or report(error, Reporting())
        _drop_output()
    return code


def _drop_output() -> None:
    # Python's exit writes what is still buffered, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(message: str) -> None:
    """Print a warning in one line."""
    print("nanoserve:", printable(" ".join(message.split())), file=sys.stderr)  # noqa: T201 - the command line's own voice


def _say(message: str, code: int) -> int:
    warn(message)
    return code
