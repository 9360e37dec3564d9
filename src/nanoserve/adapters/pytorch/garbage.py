"""Holding Python's garbage collector. To import this file loads no torch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Hold the garbage collector, unless it is held already.

    While torch is imported, because what is imported stays: to look through it again and again takes a sixth of the time.
    While a graph is captured, because the collector may run at any allocation and free another graph or its memory: CUDA
    forbids that in a thread that captures, and the capture would be invalid.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
