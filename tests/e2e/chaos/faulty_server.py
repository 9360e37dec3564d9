"""`nanoserve`, with the engine's process of `faulty_engine` in the place of the usual one: `python -m ... serve`."""

from __future__ import annotations

import functools
import sys
from unittest import mock

from nanoserve.entrypoints.cli import main
from nanoserve.entrypoints.service.remote_engine import RemoteEngine

_ENGINE = (sys.executable, "-m", "tests.e2e.chaos.faulty_engine")

if __name__ == "__main__":
    faulty = functools.partial(RemoteEngine, command=_ENGINE)
    with mock.patch("nanoserve.entrypoints.serving.run.RemoteEngine", faulty):
        sys.exit(main())
