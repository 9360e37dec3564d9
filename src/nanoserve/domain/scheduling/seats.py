"""Device rows and the sequences that hold them, with a bound per request class."""

from __future__ import annotations

import heapq

from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.sequence import Sequence


class Seats:
    """Rows 0 to max_num_seqs - 1; the lowest free one is taken first.

    Attributes:
        running: the sequences that hold a row, in the order in which they took it.
    """

    def __init__(self, limits: Limits) -> None:
        self.running: dict[Sequence, None] = {}
        self._num_rows = limits.max_num_seqs
        self._bounds = {each.name: each.max_running for each in limits.classes}
        self._taken_by_class = dict.fromkeys(self._bounds, 0)
        self._free = list(range(limits.max_num_seqs))
        self._released: list[int] = []

    @property
    def free(self) -> tuple[int, ...]:
        """The rows that no sequence holds."""
        return tuple(self._free)

    @property
    def are_taken(self) -> bool:
        """True if no row is free."""
        return not self._free

    def open_to(self, class_name: str) -> bool:
        """True if the class may have one more row."""
        bound = self._bounds[class_name]
        return bound is None or self._taken_by_class[class_name] < bound

    def take(self, sequence: Sequence) -> int:
        """Give the sequence a row."""
        row = heapq.heappop(self._free)
        sequence.row = row
        self.running[sequence] = None
        self._taken_by_class[sequence.request.request_class] += 1
        return row

    def leave(self, sequence: Sequence) -> int:
        """Take the sequence's row back; the next plan tells the runner."""
        row = sequence.row
        assert row is not None
        sequence.row = None
        del self.running[sequence]
        self._taken_by_class[sequence.request.request_class] -= 1
        heapq.heappush(self._free, row)
        self._released.append(row)
        return row

    def released(self) -> list[int]:
        """The rows given back since the last time this was asked."""
        released, self._released = self._released, []
        return released

    def distrust_runner(self) -> None:
        """The runner may have missed releases: the next plan releases every row."""
        self._released = list(range(self._num_rows))

    def youngest(self) -> Sequence:
        """The running sequence that comes last in order, the first to be preempted."""
        return max(self.running, key=lambda each: each.order)
