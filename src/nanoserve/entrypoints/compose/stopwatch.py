"""Where the time of a start goes, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Mapping

import attrs


@attrs.frozen
class StartPhase:
    """One part of a start and how many seconds it took."""

    name: str
    seconds: float


class Stopwatch:
    """Cuts the time since it was made into phases.

    Attributes:
        phases: in the order in which they first ended; one that comes again is one phase.
    """

    def __init__(self) -> None:
        self.phases: list[StartPhase] = []
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """End a phase: the time since the last one ended belongs to `name`."""
        now = time.monotonic()
        self._add(name, now - self._since)
        self._since = now

    def lap_as(self, parts: Mapping[str, float], rest: str) -> None:
        """End a phase whose parts measured themselves, in seconds; what they do not explain belongs to `rest`."""
        now = time.monotonic()
        left = now - self._since - sum(parts.values())
        for name, seconds in {**parts, rest: max(left, 0.0)}.items():
            self._add(name, seconds)
        self._since = now

    def _add(self, name: str, seconds: float) -> None:
        for index, each in enumerate(self.phases):
            if each.name == name:
                self.phases[index] = StartPhase(name, each.seconds + seconds)
                return
        self.phases.append(StartPhase(name, seconds))
