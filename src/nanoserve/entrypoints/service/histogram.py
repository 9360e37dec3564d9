"""Counts of values by size: cheap enough to be told of every token."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


class Histogram:
    """How many values were at most each bound, and their sum.

    Attributes:
        bounds: ascending; beyond the last one everything falls into one more bucket.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or several equal ones."""
        self._counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[int]:
        """Values up to each bound, and last all of them."""
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return counts
