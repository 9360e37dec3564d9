"""`nanoserve` over an engine that computes nothing: `python -m benchmarks.paced_server PERIOD serve ...`; see `paced_engine`."""

from __future__ import annotations

import functools
import sys
from unittest import mock

from nanoserve.entrypoints.cli import main
from nanoserve.entrypoints.compose.engine_client import remote_engine


def run(period: str) -> None:
    """Run the command line; each stream gets a token in every `period` seconds."""
    command = (sys.executable, "-m", "benchmarks.paced_engine", period)
    paced = functools.partial(remote_engine, command=command)
    with mock.patch("nanoserve.entrypoints.server.run.remote_engine", paced):
        main()


if __name__ == "__main__":
    run(sys.argv.pop(1))
