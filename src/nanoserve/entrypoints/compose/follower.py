"""The program of every rank but the first: `python -m nanoserve.entrypoints.compose.follower FILE_DESCRIPTOR`."""

from __future__ import annotations

import socket
import sys

from nanoserve.adapters.engine_process.host.process import become_host
from nanoserve.adapters.engine_process.ranks.follower import MakeRunner, follow
from nanoserve.adapters.engine_process.wire.plans import Join
from nanoserve.entrypoints.compose.bootstrap import survey
from nanoserve.entrypoints.compose.config.configuration import argument_settings
from nanoserve.entrypoints.compose.process import silence_warnings


def main() -> int:
    """Follow the first rank on the connection whose file descriptor is the only argument; returns the exit code."""
    silence_warnings()
    become_host()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    return follow(connection, _load, is_watchful=lambda join: bool(join.settings["paranoid"]))


def _load(join: Join) -> tuple[int, MakeRunner]:
    settings = argument_settings(join.settings)
    found = survey(settings)
    from nanoserve.entrypoints.compose.building import load_part  # noqa: PLC0415 - loads torch

    return load_part(settings, found, join.rank)


if __name__ == "__main__":
    sys.exit(main())
