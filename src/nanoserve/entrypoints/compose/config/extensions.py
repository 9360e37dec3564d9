"""What other packages add by entry points. One that cannot be loaded is left out, so that a stale package breaks no command."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
LEFT_OUT: Final[dict[str, str]] = {}
"""By package, the first of its entry points that could not be loaded, and why."""


def load_extensions(group: str, read: Callable[[Any], T]) -> dict[str, T]:
    """By name, what `read` makes of what the entry points of a group name."""
    found = {}
    for each in sorted(importlib.metadata.entry_points(group=group)):
        try:
            found[each.name] = read(each.load())
        except Exception as error:  # noqa: BLE001 - it is another package's code
            package = "of an unknown name" if each.dist is None else each.dist.name
            LEFT_OUT.setdefault(package, f"{each.value}, which cannot be loaded: {error}")
    return found
