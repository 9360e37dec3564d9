"""The program of every rank but the first: `python -m nanoserve.entrypoints.compose.follower FILE_DESCRIPTOR`."""

from __future__ import annotations

import os
import socket
import sys

from nanoserve.adapters.engine_process.launching import become_host
from nanoserve.adapters.engine_process.ranks.follower import MakeRunner, follow
from nanoserve.adapters.engine_process.wire.plans import Join
from nanoserve.entrypoints.compose.bootstrap import survey
from nanoserve.entrypoints.compose.config.configuration import argument_settings
from nanoserve.entrypoints.compose.process import prepare_process, silence_warnings


def main() -> int:
    """Follow the first rank on the connection whose file descriptor is the only argument; returns the exit code."""
    silence_warnings()
    become_host()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    prepare_process()
    from nanoserve.entrypoints.compose.building import load_part  # noqa: PLC0415 - while the first rank imports

    def load(join: Join) -> tuple[int, MakeRunner]:
        os.environ.update(join.environment)
        settings = argument_settings(join.settings)
        return load_part(settings, survey(settings), join.rank)

    return follow(connection, load, is_watchful=lambda join: bool(join.settings["paranoid"]))


if __name__ == "__main__":
    sys.exit(main())
