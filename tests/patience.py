"""How long any test waits for what must come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 120.0
"""Seconds after which a test gives up; what it waits for takes a few, also on a busy machine."""


def wait_until(condition: Callable[[], object], seen: Callable[[], object] = lambda: "") -> None:
    """Return when the condition holds; where it never does, `seen` is shown. What takes long is looked at less often: a look may be a request."""
    end, pause = time.monotonic() + PATIENCE, 0.01
    while not condition():
        assert time.monotonic() < end, seen()
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)
