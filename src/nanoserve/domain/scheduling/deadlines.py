"""Who has run out of time: request deadlines and bounds on waiting for the first step."""

from __future__ import annotations

import attrs

from nanoserve.domain.scheduling.lazy_heap import LazyHeap
from nanoserve.domain.sequence import Phase, Sequence


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
        """Set the alarms that the sequence's request asks for."""
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

    def due(self, now: float) -> list[Sequence]:
        """The sequences whose time is up at clock reading `now`, in order of their alarms."""
        expired = []
        while (entry := self._alarms.peek()) and entry[0] <= now:
            expired.append(self._alarms.pop().sequence)
        return list(dict.fromkeys(expired))
