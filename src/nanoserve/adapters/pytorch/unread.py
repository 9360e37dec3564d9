"""A part of torch that is read when something of it is asked for. To import this file loads no torch."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, Final

META: Final = "torch._meta_registrations"
"""Python functions for operators on tensors without memory: a fifth of the time that torch takes to import, for what its compiler asks."""


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
