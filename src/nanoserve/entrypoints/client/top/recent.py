"""The last minute of statuses: rates now, and one number per second for the sparklines."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from nanoserve.entrypoints.client.top.following import ServerStatus

SECONDS: Final = 60
RATE_SECONDS: Final = 2.0
"""A rate is of the last so many seconds: shorter ones flicker with the rhythm of the events."""
Count = Callable[[ServerStatus], float]


class RecentStatuses:
    """Statuses with the moments at which they came, by a clock of ours: the server's may start again."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, ServerStatus]] = deque()

    @property
    def last(self) -> ServerStatus | None:
        """The newest one."""
        return self._taken[-1][1] if self._taken else None

    def take(self, now: float, status: ServerStatus) -> None:
        """Add one, and forget what is too old to be shown."""
        self._taken.append((now, status))
        while len(self._taken) > 2 and self._taken[1][0] < now - SECONDS - 1:
            self._taken.popleft()

    def rate(self, count: Count) -> float | None:
        """How fast a counter grows, per second; None before there are two statuses."""
        if len(self._taken) < 2:
            return None
        now, newest = self._taken[-1]
        then, older = next(
            (each for each in reversed(self._taken) if each[0] <= now - RATE_SECONDS), self._taken[0]
        )
        return max(count(newest) - count(older), 0) / max(now - then, 1e-6)

    def rates(self, count: Count) -> list[float]:
        """By how much the counter rose in each second of the last minute, the newest last; what was not seen is left out."""
        return [max(after - before, 0) for before, after in pairwise(self.levels(count, SECONDS + 1))]

    def levels(self, gauge: Count, seconds: int = SECONDS) -> list[float]:
        """A gauge at the end of each of the last seconds, the newest last; what was not seen is left out."""
        moments = [moment for moment, _ in self._taken]
        ends = (moments[-1] - second for second in reversed(range(seconds))) if moments else ()
        seen = filter(None, (bisect_right(moments, end) for end in ends))
        return [gauge(self._taken[index - 1][1]) for index in seen]
