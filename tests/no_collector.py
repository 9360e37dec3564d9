"""A stretch of a test in which Python collects no garbage: what lies in a circle stays held, whenever it would have been collected."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Garbage of before is collected first."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
