"""Where the user's messages come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from nanoserve.ports.errors import BadValueError

PROMPT: Final = "> "
MORE: Final = ". "
ReadLine = Callable[[str], str]
"""Returns a line without its end; raises `EOFError` where there is none. The prompt is for people."""


def messages(*, interactive: bool) -> Iterator[str]:
    """One message after the other, until the input ends; a line that ends in a backslash goes on in the next.

    Ctrl-C at the prompt ends them as well. Raises `BadValueError` for bytes that are no text.
    """
    read = _line_editor() if interactive else _read_pipe
    ends = (EOFError, KeyboardInterrupt) if interactive else (EOFError,)
    with contextlib.suppress(*ends):
        while True:
            try:
                message = _read_message(read)
            except ends:
                if interactive:
                    print()  # noqa: T201 - the prompt's line ends
                raise
            if message.strip():
                yield message


def _read_message(read: ReadLine) -> str:
    line = read(PROMPT)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read(MORE))
    return "\n".join(lines)


def _line_editor() -> ReadLine:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives `input` its editing and history, where there is one
    return input


def _read_pipe(_prompt: str) -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: byte 0x{line[error.start]:02x} at offset {error.start} of a line"
        raise BadValueError("stdin", message) from None
