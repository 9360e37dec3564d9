"""Counts of values by size: cheap enough to be updated for every token."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Sequence

from nanoserve.ports.counts import Distribution


class Histogram:
    """How many values were at most each bound, and their sum.

    Args:
        bounds: ascending; beyond the last one everything falls into one more bucket.
        own: where this process counts, one more bucket than bounds; others: where those count that share its work.
    """

    def __init__(
        self, bounds: Sequence[float], own: Distribution | None = None, others: Sequence[Distribution] = ()
    ) -> None:
        self.bounds = tuple(bounds)
        own = own or Distribution([0] * (len(self.bounds) + 1), [0.0])
        self._all = (own, *others)
        self._counts, self._sum = own.counts, own.sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or several equal ones."""
        self._counts[bisect.bisect_left(self.bounds, value)] += times
        self._sum[0] += value * times

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return math.fsum(each.sum[0] for each in self._all)

    @property
    def counts(self) -> tuple[int, ...]:
        """Values in each bucket, the last one beyond all bounds."""
        return tuple(map(sum, zip(*(each.counts for each in self._all), strict=True)))

    def cumulative(self) -> list[int]:
        """Values up to each bound, and last all of them."""
        return list(itertools.accumulate(self.counts))


class RecentValues:
    """The values that a histogram got of late, as long as `mark` is called again and again.

    Args:
        whole: the histogram.
        span: seconds that count; up to `period` more where marks are seldom.
        period: seconds between two marks that are kept.
    """

    def __init__(self, whole: Histogram, span: float = 30.0, period: float = 1.0) -> None:
        self._whole = whole
        self._span = span
        self._period = period
        self._marks = deque([(-math.inf, whole.counts)])

    def mark(self, now: float) -> None:
        """Note what there is at this reading of a clock."""
        marks = self._marks
        if now - marks[-1][0] >= self._period:
            marks.append((now, self._whole.counts))
        while len(marks) > 1 and marks[1][0] <= now - self._span:
            marks.popleft()

    def quantile(self, share: float) -> float | None:
        """A value that `share` of them are at most, as far as the buckets tell; None without values."""
        counts = [new - old for new, old in zip(self._whole.counts, self._marks[0][1], strict=True)]
        rank, below, bounds = share * sum(counts), 0, self._whole.bounds
        for number, count in enumerate(counts):
            if count and below + count >= rank:
                low = bounds[number - 1] if number else 0.0
                high = bounds[min(number, len(bounds) - 1)]
                return low + (high - low) * (rank - below) / count
            below += count
        return None
