"""`nanoserve`, with another program in the place of its engine's: `python -m tests.process.engine_swap MODULE serve ...`."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from unittest import mock

from nanoserve.entrypoints.cli import main
from nanoserve.entrypoints.compose.engine_client import remote_engine


@contextlib.contextmanager
def swapped(engine: str) -> Iterator[None]:
    """Servers of this process start the module `engine` as their engine meanwhile."""
    remote = functools.partial(remote_engine, command=(sys.executable, "-m", engine))
    unprepared = mock.patch("nanoserve.entrypoints.compose.early.launching.launch", side_effect=OSError)
    with unprepared, mock.patch("nanoserve.entrypoints.server.serve.remote_engine", remote):
        yield


def run(engine: str) -> None:
    """Run the command line with it."""
    with swapped(engine):
        main()


if __name__ == "__main__":
    run(sys.argv.pop(1))
