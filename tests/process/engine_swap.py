"""`nanoserve`, with another program in the place of its engine's: `python -m tests.process.engine_swap MODULE serve ...`."""

from __future__ import annotations

import functools
import sys
from unittest import mock

from nanoserve.entrypoints.cli import main
from nanoserve.entrypoints.compose.engine_client import remote_engine


def run(engine: str) -> None:
    """Run the command line; `engine` is the module that a server starts as its engine."""
    swapped = functools.partial(remote_engine, command=(sys.executable, "-m", engine))
    unprepared = mock.patch("nanoserve.entrypoints.compose.early.launching.launch", side_effect=OSError)
    with unprepared, mock.patch("nanoserve.entrypoints.server.serve.remote_engine", swapped):
        main()


if __name__ == "__main__":
    run(sys.argv.pop(1))
