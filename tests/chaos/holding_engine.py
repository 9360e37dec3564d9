"""The engine's process as `nanoserve serve` starts it, except that no mask of a grammar is ever made."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
from typing import Any
from unittest import mock

from nanoserve.adapters.llguidance import crew, serving
from nanoserve.entrypoints.compose.engine_host import main

HELD = "CHAOS_HELD"
"""Names a file that is made when a mask is begun."""


def _hold(*_given: Any) -> None:
    pathlib.Path(os.environ[HELD]).touch()
    threading.Event().wait()


if __name__ == "__main__" and len(sys.argv) > 2 and all(each.isdecimal() for each in sys.argv[1:]):
    with mock.patch.object(serving.Desk, "fill", _hold):
        serving.main(*map(int, sys.argv[1:]))
elif __name__ == "__main__":
    with mock.patch.object(crew, "SERVING", "tests.chaos.holding_engine"):
        sys.exit(main())
