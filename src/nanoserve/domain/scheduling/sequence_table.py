"""Where every living sequence stands: in line, held back, or on a row, where it prefills or decodes; and how many there were."""

from __future__ import annotations

import heapq

import attrs

from nanoserve.domain.loras import Loras
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.queue import Deadlines, WaitingQueue
from nanoserve.domain.scheduling.steps import DecodeSet
from nanoserve.domain.sequence import Phase, Sequence, Trigger
from nanoserve.ports.request import FinishReason


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
    """

    def __init__(self, limits: Limits) -> None:
        self.requests: dict[str, list[Sequence]] = {}
        self.waiting = WaitingQueue(limits.classes)
        self.rows = RowPool(limits)
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeSet(limits.block_size)
        self.deadlines = Deadlines()
        self.loras = Loras(limits.max_loras)
        self._held: set[Sequence] = set()

    @property
    def alive(self) -> list[Sequence]:
        """The sequences that have not ended, in the order of arrival."""
        families = self.requests.values()
        return [each for family in families for each in family if each.phase is not Phase.FINISHED]

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
            self.decoding.join(sequence, step + 1)

    def let_go(self, sequence: Sequence, step: int) -> None:
        """What a sequence waited for is there after `step`, the newest planned one; it may have ended."""
        if sequence in self._held:
            self._held.discard(sequence)
            self.waiting.let_go(sequence)
        elif sequence.phase is Phase.RUNNING and sequence not in self.decoding:
            self.decoding.join(sequence, step + 1)

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


def num_planned(sequence: Sequence, step: int) -> int:
    """How many tokens of a running sequence are computed once `step`, the newest planned one, is done."""
    if sequence.decode_offset is None:
        return sequence.num_scheduled_tokens
    return max(sequence.num_scheduled_tokens, step - sequence.decode_offset + 1)
