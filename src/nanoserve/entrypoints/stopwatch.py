"""Where the time of a start goes, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Mapping

import attrs


@attrs.frozen
class Phase:
    """One part of a start and how many seconds it took."""

    name: str
    seconds: float


class Stopwatch:
    """Cuts the time since it was made into phases.

    Attributes:
        phases: in the order in which they ended.
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """End a phase: the time since the last one ended belongs to `name`."""
        now = time.monotonic()
        self.phases.append(Phase(name, now - self._since))
        self._since = now

    def lap_as(self, parts: Mapping[str, float], rest: str) -> None:
        """End a phase whose parts measured themselves, in seconds; what they do not explain belongs to `rest`."""
        now = time.monotonic()
        left = now - self._since - sum(parts.values())
        self.phases += [Phase(name, seconds) for name, seconds in parts.items()]
        self.phases.append(Phase(rest, max(left, 0.0)))
        self._since = now
