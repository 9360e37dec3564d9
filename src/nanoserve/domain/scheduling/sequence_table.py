"""Where every living sequence stands: in line, held back, or on a row, where it prefills or decodes; how it loses its place; and how many there were."""

from __future__ import annotations

import heapq

import attrs

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.loras import Loras
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.isolation import Suspects
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.queue import Deadlines, WaitingQueue
from nanoserve.domain.scheduling.steps import DecodeSet
from nanoserve.domain.sequence import Phase, Sequence, Trigger
from nanoserve.ports.driven import Clock
from nanoserve.ports.events import SequenceAdmitted, SequencePreempted
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason
from nanoserve.ports.step import TableUpdate


@attrs.define
class Counters:
    """Counts of sequences, except where the name says requests, tokens, blocks or steps, from clock reading `since` on.

    At every moment `accepted` equals the finished ones of all reasons plus those running and waiting.
    """

    since: float = 0.0
    accepted: int = 0
    finished: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    finished_requests: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    late_masks: int = 0
    steps: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    wide_steps: int = 0
    leaked_blocks: int = 0


class RowPool:
    """Rows 0 to max_num_seqs - 1; the lowest free one is taken first.

    Attributes:
        running: the sequences that hold a row, in the order in which they took it.
        free: the rows that no sequence holds, as a heap.
    """

    def __init__(self, limits: Limits) -> None:
        self.running: dict[Sequence, None] = {}
        self._num_rows = limits.max_num_seqs
        self._bounds = {each.name: each.max_running for each in limits.classes}
        self._taken_by_class = dict.fromkeys(self._bounds, 0)
        self.free = list(range(limits.max_num_seqs))
        self._released: list[int] = []

    def open_to(self, class_name: str) -> bool:
        """True if the class may have one more row."""
        bound = self._bounds[class_name]
        return bound is None or self._taken_by_class[class_name] < bound

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

    def leave(self, sequence: Sequence) -> int:
        """Take the sequence's row back; the next plan tells the runner."""
        row = sequence.row
        assert row is not None
        sequence.row = None
        del self.running[sequence]
        self._taken_by_class[sequence.request.request_class] -= 1
        heapq.heappush(self.free, row)
        self._released.append(row)
        return row

    def released(self) -> list[int]:
        """The rows given back since the last time this was asked."""
        released, self._released = self._released, []
        return released

    def release_all(self) -> None:
        """The runner may have missed releases: the next plan releases every row."""
        self._released = list(range(self._num_rows))

    def youngest(self) -> Sequence:
        """The running sequence that comes last in order, the first to be preempted."""
        return max(self.running, key=lambda each: each.order)


class SequenceTable:
    """The moves of sequences between their places; who moves, and why, is the scheduler's to decide.

    Attributes:
        requests: the sequences of each request of which one at least has not ended.
        prefilling: sequences on rows of whose known tokens some are not planned yet, in order.
        weights: the digest of weights that were changed since the start, which names of blocks count; empty if none were.
    """

    def __init__(self, limits: Limits) -> None:
        self.requests: dict[str, list[Sequence]] = {}
        self.waiting = WaitingQueue(limits.classes)
        self.rows = RowPool(limits)
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeSet(limits.block_size)
        self.deadlines = Deadlines()
        self.loras = Loras(limits.max_loras)
        self.weights = ""
        self._held: set[Sequence] = set()

    @property
    def alive(self) -> list[Sequence]:
        """The sequences that have not ended, in the order of arrival."""
        families = self.requests.values()
        return [each for family in families for each in family if each.phase is not Phase.FINISHED]

    @property
    def has_deferred(self) -> bool:
        """True if a deferred sequence waits or runs."""
        return self.rows.has_deferred or self.waiting.length(DEFERRED_CLASS) > 0

    def add(self, sequences: list[Sequence], *, may_start: bool) -> None:
        """A request's sequences stand in line if they `may_start`."""
        if sequences[0].lora:
            self.loras.accept(sequences)
        self.requests[sequences[0].request.request_id] = sequences
        for sequence in sequences:
            self.deadlines.watch(sequence)
            if may_start:
                self.waiting.push(sequence)
            else:
                self.hold(sequence)

    def hold(self, sequence: Sequence) -> None:
        """The sequence waits, and stands in no line until what it waits for is there."""
        self._held.add(sequence)
        self.waiting.hold_back(sequence)

    def repeat(self, sequence: Sequence, step: int, *, sits_out: bool) -> None:
        """Have a row compute its newest token again, in the step behind `step`, the newest planned one, or once it is let go."""
        if sequence in self.decoding and not sits_out:
            self.decoding.repeat(sequence)
            return
        if sequence in self.decoding:
            self.decoding.leave(sequence, step)
        sequence.num_scheduled_tokens = len(sequence.token_ids) - 1
        if not sits_out:
            self.decoding.join(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """What a sequence waited for is there; it may have ended."""
        if sequence in self._held:
            self._held.discard(sequence)
            self.waiting.let_go(sequence)
        elif sequence.phase is Phase.RUNNING and sequence not in self.decoding:
            self.decoding.join(sequence)

    def may_sit(self, sequence: Sequence, step: int, committed: int) -> bool:
        """Whether nothing but room keeps a waiting sequence from a row in a step; `committed` is the newest one that is home.

        A preempted sequence stays out while a step of its former row is in flight: that step's token is appended when it is
        committed, and a row admitted now would lack it.
        """
        if sequence.last_step > committed:
            return False
        return not sequence.lora or self.loras.find(sequence, step, committed)

    def seat(self, sequence: Sequence) -> int:
        """Give a sequence a row, on which it prefills."""
        sequence.move(Trigger.RESUME if sequence.phase is Phase.PREEMPTED else Trigger.ADMIT)
        self.prefilling.append(sequence)
        self.prefilling.sort(key=lambda each: each.order)
        if sequence.lora:
            self.loras.seat(sequence)
        return self.rows.take(sequence)

    def unseat(self, sequence: Sequence, step: int) -> int:
        """Take a sequence's row back after `step`, the newest planned one."""
        # `leave` notes the newest step that computes the sequence, which bars its return until that step is committed.
        if sequence in self.decoding:
            self.decoding.leave(sequence, step)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        if sequence.lora:
            self.loras.unseat(sequence, step)
        return self.rows.leave(sequence)

    def release_all(self) -> None:
        """The runner may have missed steps: the next plan releases every row, and nothing is in a slot. No sequence has a row."""
        self.rows.release_all()
        self.loras.empty_slots()

    def send_back(self, sequence: Sequence, *, held: bool) -> None:
        """A sequence without its row waits for another one, at its old place in line or `held`."""
        sequence.move(Trigger.PREEMPT)
        sequence.num_scheduled_tokens = 0
        if held:
            self.hold(sequence)
        else:
            self.waiting.push(sequence)

    def end(self, sequence: Sequence) -> None:
        """The sequence has no row, and ends."""
        waited = sequence.phase is not Phase.RUNNING
        sequence.move(Trigger.FINISH)
        if waited:
            self.waiting.note_finished(sequence)
        self._held.discard(sequence)
        self.deadlines.note_finished(sequence)
        if sequence.lora:
            self.loras.end(sequence)
        request_id = sequence.request.request_id
        if all(each.phase is Phase.FINISHED for each in self.requests[request_id]):
            del self.requests[request_id]


class Population:
    """Sequences in their places, and what the scheduler and those who report must hear when one loses its own.

    Attributes:
        step: the newest step that was planned.
        notices, ended: what has happened since the engine reported last.
        is_settled: whether the next step is the last one, one token further, unless a row has a date.
        cut_short_at: the newest step that was planned when a sequence last ended before its full length: such steps compute too much.
    """

    def __init__(self, limits: Limits, cache: KVCache, clock: Clock) -> None:
        self.limits = limits
        self.cache = cache
        self.table = SequenceTable(limits)
        self.counters = Counters(since=clock.now())
        self.constraints = Constraints()
        self.suspects = Suspects()
        self.step = self.cut_short_at = 0
        self.is_settled = False
        self.notices: list[SequenceAdmitted | SequencePreempted] = []
        self.ended: list[Sequence] = []
        self._clock = clock
        self._remapped: dict[int, list[TableUpdate]] = {}

    def finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence at any moment; its blocks and row are free at once. Does nothing to a finished one."""
        if sequence.phase is Phase.FINISHED:
            return
        if sequence.phase is Phase.RUNNING:
            self._vacate(sequence)
        self.is_settled = False
        self.cut_short_at = self.cut_short_at if reason is FinishReason.LENGTH else self.step
        self.suspects.pop(sequence, None)
        self.constraints.close(sequence)
        if self.cache.tiers is not None:
            self.cache.tiers.drop(sequence)
        self.table.end(sequence)
        sequence.finish_reason, sequence.error, sequence.finished = reason, error, self._clock.now()
        self.ended.append(sequence)
        self.counters.finished[reason] += 1

    def conclude(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence for what its text showed; this overrules the reason that its newest token alone gave."""
        if sequence.finish_reason is not None:
            self.counters.finished[sequence.finish_reason] -= 1
            self.counters.finished[reason] += 1
            sequence.finish_reason, sequence.error = reason, error
        self.finish(sequence, reason, error)

    def abort(self, request_id: str) -> None:
        """End every sequence of a request; unknown and finished requests are none."""
        for sequence in list(self.table.requests.get(request_id, ())):
            self.finish(sequence, FinishReason.ABORT)

    def _share(self, sequence: Sequence, num_computed: int) -> None:
        updates = self.cache.share(sequence, num_computed)
        if updates:
            self.is_settled = False
            self._remapped.setdefault(updates[0].row, []).extend(updates)

    def _preempt(self, sequence: Sequence, draft: Draft | None = None) -> None:
        """Send a running sequence back to wait; what is in `draft` for its row is taken out of it."""
        self.is_settled = False
        if draft is not None:
            self.cache.states.cancel(draft.withdraw(sequence))
        self._vacate(sequence)
        self.table.send_back(sequence, held=self.constraints.awaits(sequence))
        self.counters.preemptions += 1
        self.notices.append(SequencePreempted(sequence.request.request_id, sequence.index))

    def _vacate(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        row = self.table.unseat(sequence, self.step)
        # Another sequence may have the row in the next plan, and these updates are for the tables of this one.
        self._remapped.pop(row, None)
