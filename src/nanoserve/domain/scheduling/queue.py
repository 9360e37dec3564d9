"""The waiting sequences by request class and their order, the rows that they wait for, and their deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

import attrs

from nanoserve.domain.scheduling.limits import Limits, RequestClass
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.errors import QueueFullError
from nanoserve.ports.request import DEFERRED_CLASS, Request

ItemT = TypeVar("ItemT")

_SMALLEST_SWEEP = 64


class LazyHeap(Generic[ItemT]):
    """A heap of items, smallest key first, at O(log n).

    Its owner notes every death; it keeps at most as many dead items as living ones.
    """

    def __init__(self, is_alive: Callable[[ItemT], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[tuple[Any, int, ItemT]] = []
        self._pushed = 0
        self._deaths = 0

    def push(self, key: object, item: ItemT) -> None:
        """Add an item; equal keys come out in the order they went in."""
        self._pushed += 1
        heapq.heappush(self._entries, (key, self._pushed, item))

    def remove(self, item: ItemT) -> None:
        """Remove any item, at O(n)."""
        self._entries = [entry for entry in self._entries if entry[2] is not item]
        heapq.heapify(self._entries)

    def __iter__(self) -> Iterator[ItemT]:
        """The living items in no order."""
        return (entry[2] for entry in self._entries if self._is_alive(entry[2]))

    def note_death(self) -> None:
        """An item has died. Sweeping costs O(n) but comes only after as many deaths."""
        self._deaths += 1
        if self._deaths >= max(_SMALLEST_SWEEP, len(self._entries) // 2):
            self._entries = [entry for entry in self._entries if self._is_alive(entry[2])]
            heapq.heapify(self._entries)
            self._deaths = 0

    def peek(self) -> tuple[Any, ItemT] | None:
        """The smallest key that is alive, with its item."""
        while self._entries and not self._is_alive(self._entries[0][2]):
            heapq.heappop(self._entries)
        return (self._entries[0][0], self._entries[0][2]) if self._entries else None

    def pop(self) -> ItemT:
        """Remove and return the item that `peek` shows."""
        return heapq.heappop(self._entries)[2]


def _is_waiting(sequence: Sequence) -> bool:
    return sequence.phase in {Phase.WAITING, Phase.PREEMPTED}


class WaitingQueue:
    """One ordered queue per request class; the head of a queue is never skipped.

    The order is a sequence's own (`Sequence.order`), so a preempted sequence returns to its place. Sequences that are held back
    for a grammar, an adapter or blocks count as waiting, but are in no queue.

    Attributes:
        is_closed: whether only preempted sequences come next.
    """

    def __init__(self, classes: Collection[RequestClass]) -> None:
        self.is_closed = False
        self._lines = {each.name: LazyHeap[Sequence](_is_waiting) for each in classes}
        self._lengths = {each.name: 0 for each in classes}
        self._bounds = {each.name: each.max_waiting for each in classes}

    def __len__(self) -> int:
        return sum(self._lengths.values())

    def __iter__(self) -> Iterator[Sequence]:
        """All that are queued, in no order."""
        return chain.from_iterable(self._lines.values())

    def length(self, class_name: str) -> int:
        """How many sequences of one class wait."""
        return self._lengths.get(class_name, 0)

    def check_room(self, request: Request) -> None:
        """Raise `QueueFullError` if the request's sequences would exceed its class's bound."""
        bound, length = self._bounds[request.request_class], self._lengths[request.request_class]
        if bound is not None and length + request.sampling.n > bound:
            raise QueueFullError(
                f"too many sequences: {length} waiting and room for {bound}; try again later"
            )

    def push(self, sequence: Sequence) -> None:
        """Put a waiting or preempted sequence into its queue."""
        self.hold_back(sequence)
        self.let_go(sequence)

    def hold_back(self, sequence: Sequence) -> None:
        """Count a sequence as waiting before it may be queued."""
        self._lengths[sequence.request.request_class] += 1

    def let_go(self, sequence: Sequence) -> None:
        """Queue a sequence that was held back."""
        self._lines[sequence.request.request_class].push(sequence.order, sequence)

    def head(self, is_open: Callable[[str], bool]) -> Sequence | None:
        """The first in order among the heads of the classes that `is_open` accepts."""
        best: Sequence | None = None
        for name, line in self._lines.items():
            entry = line.peek()
            if entry and self.is_closed and entry[1].phase is not Phase.PREEMPTED:
                continue
            if entry and is_open(name) and (best is None or entry[1].order < best.order):
                best = entry[1]
        return best

    def pop(self, sequence: Sequence) -> None:
        """Remove a sequence from its queue: fast if `head` returned it, else at O(n)."""
        name = sequence.request.request_class
        line = self._lines[name]
        if (entry := line.peek()) and entry[1] is sequence:
            line.pop()
        else:
            line.remove(sequence)
        self._lengths[name] -= 1

    def note_finished(self, sequence: Sequence) -> None:
        """A waiting sequence has finished; its item is removed later."""
        name = sequence.request.request_class
        self._lines[name].note_death()
        self._lengths[name] -= 1


class RowPool:
    """Rows 0 to max_num_seqs - 1; the lowest free one is taken first.

    Attributes:
        running: the sequences that hold a row, in the order in which they took it.
        free: the rows that no sequence holds, as a heap.
        has_answers: whether sequences are being answered that are not deferred, beside which those may have fewer rows.
    """

    def __init__(self, limits: Limits) -> None:
        self.running: dict[Sequence, None] = {}
        self._num_rows = limits.max_num_seqs
        self._bounds = {each.name: each.max_running for each in limits.classes}
        self._taken_by_class = dict.fromkeys(self._bounds, 0)
        self._most_beside = limits.deferred_rows
        self.has_answers = False
        self.free = list(range(limits.max_num_seqs))
        self._released: list[int] = []

    def open_to(self, class_name: str) -> bool:
        """True if the class may have one more row."""
        bound, taken = self._bounds[class_name], self._taken_by_class[class_name]
        if class_name == DEFERRED_CLASS and self.has_answers and taken >= (self._most_beside or taken + 1):
            return False
        return bound is None or taken < bound

    def has_too_many_deferred(self) -> bool:
        """True if deferred sequences, which then are the last in order, have more rows than they may have now."""
        most = self._most_beside if self.has_answers else None
        return most is not None and self._taken_by_class.get(DEFERRED_CLASS, 0) > most

    @property
    def has_deferred(self) -> bool:
        """True if a deferred sequence, which then is the last in order, holds a row."""
        return self._taken_by_class.get(DEFERRED_CLASS, 0) > 0

    def take(self, sequence: Sequence) -> int:
        """Give the sequence a row."""
        row = heapq.heappop(self.free)
        sequence.row = row
        self.running[sequence] = None
        self._taken_by_class[sequence.request.request_class] += 1
        return row

    def leave(self, sequence: Sequence) -> None:
        """Release the sequence's row; the next plan has the release."""
        row = sequence.row
        assert row is not None
        sequence.row = None
        del self.running[sequence]
        self._taken_by_class[sequence.request.request_class] -= 1
        heapq.heappush(self.free, row)
        self._released.append(row)

    def released(self) -> list[int]:
        """The rows released since the last call."""
        released, self._released = self._released, []
        return released

    def release_all(self) -> None:
        """The runner may have missed releases: the next plan releases every row."""
        self._released = list(range(self._num_rows))

    def youngest(self) -> Sequence:
        """The running sequence that comes last in order, the first to be preempted."""
        return max(self.running, key=lambda each: each.order)


@attrs.frozen(eq=False)
class _Alarm:
    sequence: Sequence
    only_while_queued: bool

    def is_alive(self) -> bool:
        if self.only_while_queued and self.sequence.first_scheduled is not None:
            return False
        return self.sequence.phase is not Phase.FINISHED


class Deadlines:
    """Alarms by time; looking costs nothing until one is due."""

    def __init__(self) -> None:
        self._alarms: LazyHeap[_Alarm] = LazyHeap(_Alarm.is_alive)

    def watch(self, sequence: Sequence) -> None:
        """Set the alarms of the sequence's request."""
        request = sequence.request
        if request.deadline is not None:
            self._alarms.push(request.deadline, _Alarm(sequence, only_while_queued=False))
        if request.queue_timeout is not None:
            self._alarms.push(
                sequence.arrived + request.queue_timeout, _Alarm(sequence, only_while_queued=True)
            )

    def note_finished(self, sequence: Sequence) -> None:
        """The sequence needs no alarms any more."""
        for time in (sequence.request.deadline, sequence.request.queue_timeout):
            if time is not None:
                self._alarms.note_death()

    def is_due(self, now: float) -> bool:
        """True if there are any."""
        entry = self._alarms.peek()
        return entry is not None and entry[0] <= now

    def due(self, now: float) -> list[Sequence]:
        """The sequences whose time is up at clock reading `now`, in order of their alarms."""
        expired = []
        while (entry := self._alarms.peek()) and entry[0] <= now:
            expired.append(self._alarms.pop().sequence)
        return list(dict.fromkeys(expired))
