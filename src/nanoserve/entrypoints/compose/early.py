"""The process of a server's engine, begun before the command line is read, which takes as long as it imports what it needs at first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from nanoserve.adapters.engine_process import launching

Launched = launching.Launched
HOST_COMMAND: Final = launching.own_program("nanoserve.entrypoints.compose.engine_host")
_begun: list[Launched] = []


def begin_engine(arguments: Sequence[str]) -> None:
    """Start it if a command line is a server's; whoever reads it takes the process."""
    if arguments[:1] == ["serve"]:
        with contextlib.suppress(OSError):
            _begun.append(launching.launch(HOST_COMMAND))


def take_engine(*, wanted: bool = False) -> Launched | None:
    """The process that was begun, or one that is started now; None where it cannot be. One that is not `wanted` is ended."""
    if wanted:
        with contextlib.suppress(OSError):
            return _begun.pop() if _begun else launching.launch(HOST_COMMAND)
    while _begun:
        _begun.pop().end()
    return None
