"""Where every sequence stands, and every way out of a row: ended, preempted, failed.

A sequence waits, runs or has ended. `Scheduler` seats the waiting ones and plans their steps; this is everything else
that may happen to them, at any moment between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.decode_set import DecodeSet
from nanoserve.domain.scheduling.draft import Draft, Flight
from nanoserve.domain.scheduling.isolation import Suspects
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.queue import Deadlines, WaitingQueue
from nanoserve.domain.scheduling.seats import Seats
from nanoserve.domain.sequence import Phase, Sequence, Trigger
from nanoserve.ports.driven import Clock
from nanoserve.ports.events import SequenceAdmitted, SequencePreempted
from nanoserve.ports.grammar import AT_FAULT
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import SINK_BLOCK, StepPlan, TableUpdate


@attrs.define
class Tally:
    """Counts of sequences, except where the name says requests, tokens or steps.

    At every moment `accepted` equals the finished ones of all reasons plus those running and waiting.
    """

    accepted: int = 0
    finished: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    finished_requests: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    late_masks: int = 0
    steps: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0


class Roster:
    """The sequences of an engine by where they stand, and the moves that take a row back.

    Attributes:
        requests: the sequences of each request of which one at least has not ended.
        flights: planned steps that are not committed, the oldest first.
        step, committed_step: the newest step that was planned, and that was committed.
        notices, ended: what has happened since the engine reported last.
    """

    def __init__(self, limits: Limits, cache: KVCache, clock: Clock) -> None:
        self.limits = limits
        self.cache = cache
        self.tally = Tally()
        self.notices: list[SequenceAdmitted | SequencePreempted] = []
        self.ended: list[Sequence] = []
        self.requests: dict[str, list[Sequence]] = {}
        self.seats = Seats(limits)
        self.waiting = WaitingQueue(limits.classes)
        self.decoding = DecodeSet(limits.block_size)
        self.suspects = Suspects()
        self.constraints = Constraints()
        self.flights: list[Flight] = []
        self.step = 0
        self.committed_step = 0
        self._clock = clock
        self._prefilling: list[Sequence] = []
        self._deadlines = Deadlines()
        self._remapped: dict[int, list[TableUpdate]] = {}
        self._held: set[Sequence] = set()
        self.is_settled = False
        self.cut_short_at = 0
        """The newest step that was planned when a sequence last ended before its full length: such steps compute too much."""

    def finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence at any moment; its blocks and row are free at once. Does nothing to a finished one."""
        if sequence.phase is Phase.FINISHED:
            return
        if sequence.phase is Phase.RUNNING:
            self._vacate(sequence)
            sequence.move(Trigger.FINISH)
        else:
            sequence.move(Trigger.FINISH)
            self.waiting.note_finished(sequence)
        self.is_settled = False
        if reason is not FinishReason.LENGTH:
            self.cut_short_at = self.step
        self._deadlines.note_finished(sequence)
        self.suspects.drop(sequence)
        self.constraints.close(sequence)
        if sequence in self._held:
            self._held.discard(sequence)
            if self.cache.tiers is not None:
                self.cache.tiers.drop(sequence)
        sequence.finish_reason, sequence.error = reason, error
        sequence.finished = self._clock.now()
        self._let_followers_go(sequence)
        self.ended.append(sequence)
        self.tally.finished[reason] += 1
        family = self.requests[sequence.request.request_id]
        if all(each.phase is Phase.FINISHED for each in family):
            del self.requests[sequence.request.request_id]

    def stop_at(self, sequence: Sequence, stop: str) -> None:
        """A stop string ends the sequence."""
        sequence.stop = stop
        self.conclude(sequence, FinishReason.STOP)

    def conclude(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence for what its text showed; this overrules the reason that its newest token alone gave."""
        if sequence.finish_reason is not None:
            self.tally.finished[sequence.finish_reason] -= 1
            self.tally.finished[reason] += 1
            sequence.finish_reason, sequence.error = reason, error
        self.finish(sequence, reason, error)

    def abort(self, request_id: str) -> None:
        """End every sequence of a request; unknown and finished requests are none."""
        for sequence in list(self.requests.get(request_id, ())):
            self.finish(sequence, FinishReason.ABORT)

    def fail(self, plan: StepPlan, guilty_rows: tuple[int, ...], message: str) -> list[Sequence]:
        """A step in flight failed. The guilty, which are returned, end with an error; all others are computed again.

        A sequence alone in its step is guilty. Where none can be named, all become suspects. Nothing stays in flight.
        """
        number = next(number for number, each in enumerate(self.flights) if each.plan is plan)
        flight = self.flights[number]
        by_row = flight.by_row
        guilty = [by_row[row] for row in guilty_rows if row in by_row]
        if not guilty and len(by_row) == 1:
            guilty = list(by_row.values())
        if not guilty:
            self.suspects.accuse(flight, self.flights[:number])
        for sequence in guilty:
            self.finish(sequence, FinishReason.ERROR, message)
        self.preempt_all()
        return guilty

    def preempt_all(self) -> None:
        """Give every row back; all that run are computed again. Steps in flight are forgotten.

        The runner may never have seen the rows that those steps released, so the next step releases all there are.
        """
        for flight in self.flights:
            self.cache.states.cancel(flight.copies)
        self.flights.clear()
        if self.cache.tiers is not None:
            self.cache.tiers.cancel()
        # Nothing is in flight any more, so sequences of forgotten steps may be admitted again.
        self.committed_step = self.step
        for sequence in list(self.seats.running):
            self._preempt(sequence)
        self.seats.distrust_runner()

    def draw(self, ticket: object) -> None:
        """Draw the one step in flight, which has masked rows; sequences that cannot have a token in it leave their rows."""
        (flight,) = self.flights
        drawn = self.constraints.draw(flight, ticket)
        for sequence in drawn.stuck:
            self.finish(sequence, FinishReason.ERROR, f"{AT_FAULT}leaves no token to draw")
        self.tally.late_masks += len(drawn.late)
        for sequence in drawn.late:
            if sequence.phase is Phase.RUNNING:
                self._preempt(sequence, held=True)

    def holders(self, group: int) -> Iterator[int]:
        """The blocks or states of a cache group that are held, once for each reference."""
        for sequence in self.seats.running:
            yield from (block for block in sequence.block_tables[group] if block != SINK_BLOCK)
            if group in sequence.snapshots:
                yield sequence.snapshots[group]
        if self.cache.tiers is not None:
            yield from self.cache.tiers.holders()
        for flight in self.flights:
            for each in flight.copies:
                if each.copy.group == group:
                    yield each.copy.source
                    if each.length is not None:
                        yield each.copy.target

    def _welcome_arrivals(self) -> None:
        for sequence, error in self.constraints.arrivals():
            if error is not None:
                for each in self.requests[sequence.request.request_id].copy():
                    self.finish(each, FinishReason.ERROR, error)
            else:
                self._hold_no_more(sequence)

    def _hold_no_more(self, sequence: Sequence) -> None:
        """What a sequence waited for is there; it may have ended."""
        if sequence in self._held:
            self._held.discard(sequence)
            self.waiting.let_go(sequence)

    def _hold(self, sequence: Sequence) -> None:
        """The sequence waits, and stands in no line until what it waits for is there."""
        self._held.add(sequence)
        self.waiting.hold_back(sequence)

    def _preempt(self, sequence: Sequence, draft: Draft | None = None, *, held: bool = False) -> None:
        """Send a running sequence back to wait; what is in `draft` for its row is taken out of it."""
        assert sequence.row is not None
        self.is_settled = False
        if draft is not None:
            self.cache.states.cancel(draft.withdraw(sequence.row))
        self._vacate(sequence)
        sequence.move(Trigger.PREEMPT)
        sequence.num_scheduled_tokens = 0
        if held:
            self._hold(sequence)
        else:
            self.waiting.push(sequence)
        self.tally.preemptions += 1
        self.notices.append(SequencePreempted(sequence.request.request_id, sequence.index))

    def _vacate(self, sequence: Sequence) -> None:
        # `leave` notes the newest step that computes the sequence, which bars its return until that step is committed.
        if sequence in self.decoding:
            self.decoding.leave(sequence, self.step)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
        self.cache.release(sequence)
        row = self.seats.leave(sequence)
        # Another sequence may have the row in the next plan, and these updates are for the tables of this one.
        self._remapped.pop(row, None)

    def _let_followers_go(self, leader: Sequence) -> None:
        followers, leader.followers = leader.followers, []
        for sequence in followers:
            if sequence.phase is Phase.WAITING:
                self.waiting.let_go(sequence)
