"""Who waits, by request class, and who is next."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from nanoserve.domain.scheduling.lazy_heap import LazyHeap
from nanoserve.domain.scheduling.limits import RequestClass
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.errors import QueueFullError
from nanoserve.ports.request import Request


def _is_waiting(sequence: Sequence) -> bool:
    return sequence.phase in {Phase.WAITING, Phase.PREEMPTED}


class WaitingQueue:
    """One ordered line per request class; inside a line the head is never skipped.

    The order is a sequence's own (`Sequence.order`), so a preempted sequence comes back to the place it had. Sequences
    held back until their request's first one has computed the prompt count as waiting, but stand in no line yet.
    """

    def __init__(self, classes: Seq[RequestClass]) -> None:
        self._lines = {each.name: LazyHeap[Sequence](_is_waiting) for each in classes}
        self._lengths = {each.name: 0 for each in classes}
        self._bounds = {each.name: each.max_waiting for each in classes}

    def __len__(self) -> int:
        return sum(self._lengths.values())

    def length(self, class_name: str) -> int:
        """How many sequences of one class wait."""
        return self._lengths[class_name]

    def check_room(self, request: Request) -> None:
        """Raise `QueueFullError` where the request's sequences would exceed its class's bound."""
        bound, length = self._bounds[request.request_class], self._lengths[request.request_class]
        if bound is not None and length + request.sampling.n > bound:
            raise QueueFullError(f"{length} sequences wait and the queue holds {bound}; try again later")

    def push(self, sequence: Sequence) -> None:
        """Let a waiting or preempted sequence stand in line."""
        name = sequence.request.request_class
        self._lines[name].push(sequence.order, sequence)
        self._lengths[name] += 1

    def hold_back(self, sequence: Sequence) -> None:
        """Count a sequence as waiting before it may stand in line."""
        self._lengths[sequence.request.request_class] += 1

    def let_go(self, sequence: Sequence) -> None:
        """Let a sequence that was held back stand in line."""
        self._lines[sequence.request.request_class].push(sequence.order, sequence)

    def head(self, is_open: Callable[[str], bool]) -> Sequence | None:
        """The first in order among the heads of the classes that `is_open` accepts."""
        best: Sequence | None = None
        for name, line in self._lines.items():
            entry = line.peek()
            if entry and is_open(name) and (best is None or entry[1].order < best.order):
                best = entry[1]
        return best

    def pop(self, sequence: Sequence) -> None:
        """Take a sequence out of its line: quickly the one that `head` showed, at O(n) any other."""
        name = sequence.request.request_class
        line = self._lines[name]
        entry = line.peek()
        if entry and entry[1] is sequence:
            line.pop()
        else:
            line.remove(sequence)
        self._lengths[name] -= 1

    def note_finished(self, sequence: Sequence) -> None:
        """A sequence that waited has finished; its place in line is forgotten in time."""
        name = sequence.request.request_class
        self._lines[name].note_death()
        self._lengths[name] -= 1
