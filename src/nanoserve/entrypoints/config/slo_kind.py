"""The kind of a service-level objective: the most milliseconds that a request's latencies may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""Time to the first token, between two pieces, per further token, and of the whole request."""


@attrs.frozen
class Objectives:
    """Bounds by latency, written `ttft:500,itl:50` in milliseconds; in TOML a table."""

    metavar: str = "NAME:MS,..."

    def parse(self, text: str) -> tuple[tuple[str, float], ...]:
        """Read pairs separated by commas."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return self.check([(name.strip().lower(), float(bound)) for name, bound in pairs])
        except ValueError:
            raise ValueError(f"{_WANTED}, got {text!r}") from None

    def check(self, value: Any) -> tuple[tuple[str, float], ...]:
        """Read a mapping or pairs; refuse unknown names, repeated names and bounds that are not above 0."""
        try:
            pairs = list(value.items() if isinstance(value, Mapping) else value)
            bounds = {name: float(bound) for name, bound in pairs}
        except (TypeError, ValueError):
            raise ValueError(f"{_WANTED}, got {value!r}") from None
        if (
            len(bounds) < len(pairs)
            or not set(bounds) <= set(LATENCIES)
            or not all(0 < bound < float("inf") for bound in bounds.values())
        ):
            raise ValueError(f"{_WANTED}, got {value!r}")
        return tuple(bounds.items())


_WANTED: Final = f"takes pairs written NAME:MILLISECONDS, the names being {', '.join(LATENCIES)}"
