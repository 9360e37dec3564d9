"""The place of every living sequence (queued, held back, or on a row, where it prefills or decodes), and its moves until it ends."""

from __future__ import annotations

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.loras import Loras
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.counters import Counters
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.isolation import Suspects
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.queue import Deadlines, RowPool, WaitingQueue
from nanoserve.domain.scheduling.steps import DecodeSet
from nanoserve.domain.scheduling.wide_steps import WideDecodeSet
from nanoserve.domain.sequence import Phase, Sequence, Trigger
from nanoserve.ports.driven import Clock
from nanoserve.ports.events import SequenceAdmitted, SequencePreempted
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason


class SequenceTable:
    """The sequences of one scheduler, in their places. The scheduler decides the moves; a move keeps all counts.

    Attributes:
        requests: the sequences of each request of which one at least has not ended.
        prefilling: sequences on rows of whose known tokens some are not planned yet, in order.
        weights: the digest of weights that were changed since the start, which names of blocks count; empty if none were.
        num_deterministic: how many deterministic sequences have not ended.
        step: the newest step that was planned.
        is_settled: whether nobody has moved since that step, and nobody will by the next.
        cut_short_at: `step` when a sequence last ended before its full length: such steps compute too much.
        notices, ended: what has happened since the engine reported last.
    """

    def __init__(self, limits: Limits, cache: KVCache, clock: Clock, constraints: Constraints) -> None:
        self.requests: dict[str, list[Sequence]] = {}
        self.waiting = WaitingQueue(limits.classes)
        self.rows = RowPool(limits)
        self.prefilling: list[Sequence] = []
        self.decoding = (DecodeSet if limits.max_width == 1 else WideDecodeSet)(limits.block_size)
        self.deadlines = Deadlines()
        self.loras = Loras(limits.max_loras)
        self.suspects = Suspects()
        self.constraints = constraints
        self.counters = Counters(since=clock.now())
        self.step = self.cut_short_at = self.num_deterministic = 0
        self.weights, self.is_settled = "", False
        self.notices: list[SequenceAdmitted | SequencePreempted] = []
        self.ended: list[Sequence] = []
        self._cache, self._clock = cache, clock
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
        """Queue a request's sequences if they `may_start`, or if there are rows that nobody else wants, to be read meanwhile; else hold them back."""
        if sequences[0].lora:
            self.loras.accept(sequences)
        self.requests[sequences[0].request.request_id] = sequences
        for sequence in sequences:
            self.deadlines.watch(sequence)
            if may_start or (sequence.awaits_grammar and len(self.waiting) < len(self.rows.free)):
                self.waiting.push(sequence)
            else:
                self.hold(sequence)
        self.counters.accepted += len(sequences)
        self.num_deterministic += len(sequences) * sequences[0].is_deterministic
        self.is_settled = False

    def hold(self, sequence: Sequence) -> None:
        """The sequence waits, and is in no queue until a worker or a copy is done."""
        self._held.add(sequence)
        self.waiting.hold_back(sequence)

    def let_go(self, sequence: Sequence) -> bool:
        """Queue a sequence whose wait is over; False if it was not held back, as it runs or has ended."""
        if was_held := sequence in self._held:
            self._held.discard(sequence)
            self.waiting.let_go(sequence)
        return was_held

    def next_in_line(self) -> Sequence | None:
        """The waiting sequence that may have a row next."""
        if not self.suspects:
            return self.waiting.head(self.rows.open_to)
        first = self.suspects.first
        return None if self.rows.running or self.constraints.awaits(first) else first

    def may_sit(self, sequence: Sequence, step: int, committed: int) -> bool:
        """True if only room keeps a waiting sequence from a row; `committed` is the newest committed step.

        A preempted sequence stays out while a step of its former row is in flight: that step's token is appended when it is
        committed, and a row admitted now would lack it.
        """
        if sequence.last_step > committed:
            return False
        return not sequence.lora or self.loras.find(sequence, step, committed)

    def seat(self, sequence: Sequence, now: float) -> int:
        """Give a sequence a row, on which it prefills the tokens that it has not found in the cache."""
        resumed = sequence.phase is Phase.PREEMPTED
        sequence.move(Trigger.RESUME if resumed else Trigger.ADMIT)
        sequence.fetches = 0
        self.prefilling.append(sequence)
        self.prefilling.sort(key=lambda each: each.order)
        if sequence.lora:
            self.loras.seat(sequence)
        row, cached = self.rows.take(sequence), sequence.num_scheduled_tokens
        if sequence.first_scheduled is None:
            sequence.first_scheduled, sequence.num_cached_tokens = now, cached
        self.notices.append(
            SequenceAdmitted(sequence.request.request_id, sequence.index, row, cached, resumed)
        )
        return row

    def preempt(self, sequence: Sequence, draft: Draft | None = None) -> None:
        """Send a running sequence back to wait at its old place, and remove its row's work from `draft`."""
        if draft is not None:
            self._cache.states.cancel(draft.withdraw(sequence))
        self._vacate(sequence)
        sequence.move(Trigger.PREEMPT)
        sequence.num_scheduled_tokens = sequence.num_unverified = 0
        if self.constraints.awaits(sequence):
            self.hold(sequence)
        else:
            self.waiting.push(sequence)
        self.counters.preemptions += 1
        self.notices.append(SequencePreempted(sequence.request.request_id, sequence.index))

    def finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence at any moment; its blocks and row are free at once. Does nothing to a finished one."""
        if sequence.phase is Phase.FINISHED:
            return
        was_running = sequence.phase is Phase.RUNNING
        if was_running:
            self._vacate(sequence)
        sequence.move(Trigger.FINISH)
        self.num_deterministic -= sequence.is_deterministic
        if not was_running:
            self.waiting.note_finished(sequence)
        self.cut_short_at = self.cut_short_at if reason is FinishReason.LENGTH else self.step
        self._held.discard(sequence)
        self.deadlines.note_finished(sequence)
        self.suspects.pop(sequence, None)
        self.constraints.close(sequence)
        if self._cache.tiers is not None:
            self._cache.tiers.drop(sequence)
        if sequence.lora:
            self.loras.end(sequence)
        request_id = sequence.request.request_id
        if all(each.phase is Phase.FINISHED for each in self.requests[request_id]):
            del self.requests[request_id]
        sequence.finish_reason, sequence.error, sequence.finished = reason, error, self._clock.now()
        self.ended.append(sequence)
        self.counters.finished[reason] += 1

    def _vacate(self, sequence: Sequence) -> None:
        """Take a sequence's blocks and its row."""
        self.is_settled = False
        self._cache.release(sequence)
        # `leave` notes the newest step that computes the sequence, which bars its return until that step is committed.
        if sequence in self.decoding:
            self.decoding.leave(sequence, self.step)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        if sequence.lora:
            self.loras.unseat(sequence, self.step)
        self.rows.leave(sequence)
