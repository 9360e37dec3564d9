"""Holding Python's garbage collector, and leaving a part of torch unread. To import this file loads no torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

META: Final = "torch._meta_registrations"
"""Python functions for operators on tensors without memory: a fifth of the time that torch takes to import, for what its compiler asks."""


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Hold the garbage collector, unless it is held already.

    While torch is imported, because what is imported stays: to look through it again and again takes a sixth of the time. While a graph is captured, because
    the collector may run at any allocation and free another graph or its memory: CUDA forbids that in a thread that captures, and the capture would be invalid.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Unread(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody looks through all modules
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def leave_unread() -> None:
    """Import torch without that part; for processes in which nothing but an engine runs."""
    if "torch" not in sys.modules:
        sys.modules[META] = _Unread(META)
