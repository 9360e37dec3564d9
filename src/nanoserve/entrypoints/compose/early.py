"""Work begun before the command line is read, which takes as long as it imports what it needs at first: the process of a server's engine, and to read its checkpoint."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nanoserve.adapters.engine_process import launching

Launched = launching.Launched
HOST_COMMAND: Final = launching.own_program("nanoserve.entrypoints.compose.engine_host")
_begun: list[Launched] = []


def begin_engine(arguments: Sequence[str]) -> None:
    """Start it if a command line is a server's, and read what may be its model; whoever reads the command line takes the process."""
    if arguments[:1] == ["serve"]:
        with contextlib.suppress(OSError):
            _begun.append(launching.launch(HOST_COMMAND))
        for model in arguments[1:2]:
            read_ahead(model)


def take_engine(*, wanted: bool = False) -> Launched | None:
    """The process that was begun, or one that is started now; None where it cannot be. One that is not `wanted` is ended."""
    if wanted:
        with contextlib.suppress(OSError):
            return _begun.pop() if _begun else launching.launch(HOST_COMMAND)
    while _begun:
        _begun.pop().end()
    return None


PIECE: Final = 64 << 20
READERS: Final = 8
"""One alone does not get all that a disk gives."""
CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


@functools.cache
def read_ahead(model: str) -> None:
    """Have the files of a checkpoint, of a folder or one file, in memory when they are loaded: a disk would be idle while Python imports.

    Done once for each in a process. At most half of the memory that is free is filled. Whoever loads the files says what is wrong with them; a checkpoint of few pieces is left to its loader.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        path = Path(model).expanduser()
        single = path if path.is_file() else path / "model.safetensors"
        files = [single] if single.is_file() else sorted(path.glob("model*-of-*.safetensors"))
        pieces = [(file, begin) for file in files for begin in range(0, file.stat().st_size, PIECE)]
        left = iter(pieces[: _free_memory() // 2 // PIECE])
        for _ in range(READERS if len(pieces) > READERS else 0):
            threading.Thread(target=_read, args=(left,), name="read ahead", daemon=True).start()


def _read(pieces: Iterator[tuple[Path, int]]) -> None:
    """Into the page cache, and nowhere else; it costs next to nothing where they are there."""
    with contextlib.suppress(OSError, AttributeError), Path(os.devnull).open("wb") as nowhere:
        for path, begin in pieces:
            with path.open("rb") as file:
                os.sendfile(nowhere.fileno(), file.fileno(), begin, PIECE)


def _free_memory() -> int:
    """Bytes that the machine can give, or the control group if those are fewer."""
    import psutil  # noqa: PLC0415 - while the disk reads

    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((CONTROL_GROUP / f"memory.{each}").read_text()) for each in ("max", "current"))
        free = min(free, max(limit - used, 0))
    return free
