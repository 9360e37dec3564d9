"""Kinds of values: amounts of memory, in bytes with their unit or as a fraction of what is free."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import attrs

UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}
UNITS_OF_TEN: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9}


@attrs.frozen
class Memory:
    """An amount of memory: an int of bytes, or a float that is a fraction of what is free."""

    metavar: str = "BYTES|FRACTION"

    def parse(self, text: str) -> int | float:
        """Read `4GiB`, `512MB`, `1073741824` or `0.5`."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
        unit = match and (UNITS | UNITS_OF_TEN).get(match[2].lower())
        if match is None or unit is None:
            raise ValueError(f"must be bytes such as 4GiB or a fraction such as 0.5, got {text!r}")
        if not match[2] and "." in match[1]:
            return self.check(float(match[1]))
        return self.check(int(float(match[1]) * unit))

    def check(self, value: Any) -> int | float:
        """Refuse no bytes, and fractions outside (0, 1]; a text is parsed."""
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"must be bytes such as 4GiB or a fraction such as 0.5, got {value!r}")
        if value <= 0 or (isinstance(value, float) and value > 1):
            raise ValueError(f"must be at least one byte, or a fraction in (0, 1], got {value!r}")
        return value


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
