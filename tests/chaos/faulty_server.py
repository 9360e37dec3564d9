"""`nanoserve`, with the engine's process of `faulty_engine` in the place of the usual one: `python -m ... serve`.

At its end it says how many objects the garbage collector was told to leave alone.
"""

from __future__ import annotations

import atexit
import functools
import gc
import sys
from unittest import mock

from nanoserve.entrypoints.cli import main
from nanoserve.entrypoints.compose.engine_client import remote_engine

FROZEN = "objects that are not looked at: "
_ENGINE = (sys.executable, "-m", "tests.chaos.faulty_engine")


def _say() -> None:
    sys.stderr.write(f"{FROZEN}{gc.get_freeze_count()}\n")


if __name__ == "__main__":
    atexit.register(_say)
    faulty = functools.partial(remote_engine, command=_ENGINE)
    with mock.patch("nanoserve.entrypoints.server.run.remote_engine", faulty):
        main()
