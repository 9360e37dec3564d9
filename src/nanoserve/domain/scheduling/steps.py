"""A step on its way: drafted, in flight, landed; and the rows in steady decode, kept so that a step costs what changed and not what runs.

A decoding row moves by one token per step: its position at step s is s - offset, with an offset fixed when it joins. So
its dates are known in advance: it needs a block at every step where the position is a multiple of the block size,
and it leaves after the step that computes its last token but one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import attrs

from nanoserve.domain.kv.states import PlannedCopy
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import (
    AdmittedRow,
    Chunk,
    LoraLoad,
    StepPlan,
    StepResult,
    TableUpdate,
    TokenLogprobs,
)

Progress = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its new token, and the token's log-probabilities where asked for."""
Stopped = tuple[Sequence, int, FinishReason]
"""A sequence, the token that it ends with (-1 for none), and why."""


@attrs.define
class Draft:
    """The deltas gathered so far; what concerns one row can be withdrawn if the row is preempted after all."""

    step: int
    chunks: list[tuple[Sequence, Chunk]] = attrs.field(factory=list)
    admitted: list[AdmittedRow] = attrs.field(factory=list)
    table_updates: list[TableUpdate] = attrs.field(factory=list)
    copies: tuple[PlannedCopy, ...] = ()

    def admit(self, sequence: Sequence, row: int) -> None:
        """Tell the runner all about a sequence that has been given a row."""
        admitted = AdmittedRow(
            row=row,
            token_ids=tuple(sequence.token_ids),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_computed_tokens=sequence.num_scheduled_tokens,
            block_tables=tuple(tuple(table) for table in sequence.block_tables),
            sampling=sequence.sampling,
            lora_slot=sequence.lora_slot,
            pooling=sequence.request.pooling,
        )
        self.admitted.append(admitted)

    def compute(self, sequence: Sequence, start: int, end: int) -> Chunk:
        """Compute tokens [start, end) of a sequence that prefills; after its last known token the step yields something."""
        assert sequence.row is not None
        is_last, pooled = end == len(sequence.token_ids), sequence.request.pooling is not None
        samples, pools = is_last and not pooled, is_last and pooled
        chunk = Chunk(sequence.row, start, end - start, samples=samples, pools=pools)
        self.chunks.append((sequence, chunk))
        sequence.num_scheduled_tokens, sequence.last_step = end, self.step
        return chunk

    def copy(self, copies: list[PlannedCopy]) -> None:
        """Add copies; most steps have none."""
        if copies:
            self.copies = (*self.copies, *copies)

    def withdraw(self, sequence: Sequence) -> list[PlannedCopy]:
        """Forget every delta of a sequence's row; returns the copies that will not be done."""
        row = sequence.row
        self.chunks = [entry for entry in self.chunks if entry[1].row != row]
        self.admitted = [each for each in self.admitted if each.row != row]
        self.table_updates = [update for update in self.table_updates if update.row != row]
        withdrawn = [each for each in self.copies if each.sequence is sequence]
        self.copies = tuple(each for each in self.copies if each.sequence is not sequence)
        return withdrawn

    def seal(
        self,
        released: list[int],
        decoding: tuple[int, ...],
        masked: tuple[int, ...] = (),
        lora_loads: tuple[LoraLoad, ...] = (),
    ) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=self.step,
            released=tuple(released),
            admitted=tuple(self.admitted),
            table_updates=tuple(self.table_updates),
            chunks=tuple(chunk for _, chunk in self.chunks),
            decoding=decoding,
            copies=tuple([each.copy for each in self.copies]) if self.copies else (),
            masked=masked,
            lora_loads=lora_loads,
        )


@attrs.frozen(eq=False)
class DecodingRows:
    """The decoding sequences at one moment, column by column: a step that none joins or leaves reads no sequence.

    Attributes:
        sequences, rows: in the same order.
        token_ids: their lists of tokens, which are longer with every step that is committed.
        stop_ids: what may end one of them.
    """

    sequences: tuple[Sequence, ...] = ()
    rows: tuple[int, ...] = ()
    token_ids: tuple[list[int], ...] = ()
    stop_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, members: dict[Sequence, int]) -> DecodingRows:
        """The members of the set, with their rows."""
        token_ids = tuple([each.token_ids for each in members])
        stop_ids = {each.stop_ids for each in members}
        return cls(tuple(members), tuple(members.values()), token_ids, frozenset().union(*stop_ids))


class DecodeSet:
    """Decoding sequences, by the step residue at which they need a block and by the step at which they are through."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._members: dict[Sequence, int] = {}
        self._by_residue: dict[int, dict[Sequence, None]] = {}
        self._by_last_step: dict[int, dict[Sequence, None]] = {}
        self._snapshot: DecodingRows | None = DecodingRows()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def snapshot(self) -> DecodingRows:
        """The members; the same object while no sequence joins or leaves."""
        if self._snapshot is None:
            self._snapshot = DecodingRows.of(self._members)
        return self._snapshot

    def join(self, sequence: Sequence, step: int) -> None:
        """From `step` on, the sequence decodes; its next position is `num_scheduled_tokens`."""
        assert sequence.row is not None
        offset = step - sequence.num_scheduled_tokens
        sequence.decode_offset = offset
        self._members[sequence] = sequence.row
        self._note_dates(sequence, offset)
        self._snapshot = None

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """The sequence decodes no more; `last_step` was its newest."""
        offset = sequence.decode_offset
        assert offset is not None
        del self._members[sequence]
        self._forget_dates(sequence, offset)
        sequence.num_scheduled_tokens = last_step - offset + 1
        sequence.decode_offset = None
        sequence.last_step = last_step
        self._snapshot = None

    def repeat(self, sequence: Sequence) -> None:
        """The newest step has yielded no token for a member: the next one computes the same position again."""
        assert sequence.decode_offset is not None
        self._forget_dates(sequence, sequence.decode_offset)
        sequence.decode_offset += 1
        sequence.num_scheduled_tokens -= 1
        self._note_dates(sequence, sequence.decode_offset)

    def needing_blocks(self, step: int) -> list[Sequence]:
        """The members whose position at `step` is the first of a block."""
        return list(self._by_residue.get(step % self._block_size, ()))

    def through_after(self, step: int) -> list[Sequence]:
        """The members for which `step` computes everything they may still generate from."""
        return list(self._by_last_step.get(step, ()))

    def has_date(self, step: int) -> bool:
        """True if at `step` a member needs a block, fills one or computes its last."""
        residues, size = self._by_residue, self._block_size
        return step % size in residues or (step + 1) % size in residues or step in self._by_last_step

    def _note_dates(self, sequence: Sequence, offset: int) -> None:
        for dates, date in self._dates(sequence, offset):
            dates.setdefault(date, {})[sequence] = None

    def _forget_dates(self, sequence: Sequence, offset: int) -> None:
        for dates, date in self._dates(sequence, offset):
            del dates[date][sequence]
            if not dates[date]:
                del dates[date]

    def _dates(
        self, sequence: Sequence, offset: int
    ) -> tuple[tuple[dict[int, dict[Sequence, None]], int], ...]:
        last_step = offset + sequence.max_total_tokens - 2
        return (self._by_residue, offset % self._block_size), (self._by_last_step, last_step)


@attrs.define(eq=False)
class InFlightStep:
    """A planned step that is not committed yet, with the sequences its rows stood for when it was planned.

    `filling` are those decoding sequences whose token in this step is the last of a block, and `through` those whose last one
    it yields. They are noted now, because when the step is committed the decode set stands several steps further, and its
    members may have left it.
    """

    plan: StepPlan
    chunks: tuple[tuple[Sequence, Chunk], ...]
    decoding: DecodingRows
    filling: list[Sequence]
    through: list[Sequence]
    planned_at: float
    copies: tuple[PlannedCopy, ...] = ()

    @property
    def by_row(self) -> dict[int, Sequence]:
        """The sequences that the step computes, by their rows."""
        rows = {chunk.row: sequence for sequence, chunk in self.chunks}
        rows.update(zip(self.plan.decoding, self.decoding.sequences, strict=True))
        return rows

    @property
    def sampling(self) -> tuple[Sequence, ...]:
        """The sequences that yield a token, in the order of `StepResult.token_ids`."""
        if not self.chunks:
            return self.decoding.sequences
        return tuple(sequence for sequence, chunk in self.chunks if chunk.samples) + self.decoding.sequences

    def land(
        self, result: StepResult, missed: Container[Sequence], cut_short_at: int
    ) -> tuple[list[Progress], list[Stopped]]:
        """Append the tokens to their sequences: what each gained, and which of them end with what they gained.

        Where a row may have ended since the step was planned, as one has `cut_short_at` it or later, or has `missed` its draw, each
        is looked at.
        """
        rows = self.plan.sampling_rows
        scores: list[TokenLogprobs | None]
        scores = [result.logprobs.get(row) for row in rows] if result.logprobs else [None] * len(rows)
        if self.chunks or self.plan.masked or self.plan.step <= cut_short_at:
            progress, stopped = self._land_each(result.token_ids, scores, missed if self.plan.masked else ())
            return progress, stopped + self._land_vectors(result)
        decoding = self.decoding
        for tokens, token in zip(decoding.token_ids, result.token_ids, strict=True):
            tokens.append(token)
        nothing_stops = decoding.stop_ids.isdisjoint(result.token_ids)
        stopped = _stopped(self.through if nothing_stops else decoding.sequences)
        return list(zip(decoding.sequences, result.token_ids, scores, strict=True)), stopped

    def _land_vectors(self, result: StepResult) -> list[Stopped]:
        """The sequences that end with the vector of their prompt."""
        living = [each for each in self.chunks if each[1].pools and each[0].finish_reason is None]
        for sequence, chunk in living:
            sequence.pooled = result.pooled[chunk.row]
        return [(sequence, -1, FinishReason.STOP) for sequence, _ in living]

    def _land_each(
        self, token_ids: list[int], scores: list[TokenLogprobs | None], missed: Container[Sequence]
    ) -> tuple[list[Progress], list[Stopped]]:
        progress: list[Progress] = []
        for sequence, token, score in zip(self.sampling, token_ids, scores, strict=True):
            # It has ended since the step was planned: what was computed beyond the end is dropped.
            if sequence.finish_reason is None and sequence not in missed:
                sequence.token_ids.append(token)
                progress.append((sequence, token, score))
        return progress, _stopped([each[0] for each in progress])


def _stopped(sequences: Iterable[Sequence]) -> list[Stopped]:
    newest = [(each, each.token_ids[-1]) for each in sequences]
    return [
        (each, token, reason) for each, token in newest if (reason := each.stop_reason(token)) is not None
    ]
