"""A kind of value: an amount of bytes, written with its unit."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nanoserve.entrypoints.config.memory_kind import Memory

_MEMORY: Final = Memory()


@attrs.frozen
class Size:
    """So many bytes: an int, at least `low`."""

    low: int = 1
    metavar: str = "BYTES"

    def parse(self, text: str) -> int:
        """Read `256M`, `4GiB` or `1048576`."""
        return self.check(text)

    def check(self, value: Any) -> int:
        """Refuse too few, and what is no amount; a text is parsed."""
        try:
            size = _MEMORY.check(value)
        except ValueError:
            size = 0.0
        if not isinstance(size, int) or size < self.low:
            raise ValueError(f"must be bytes such as 256M, at least {self.low}, got {value!r}")
        return size
