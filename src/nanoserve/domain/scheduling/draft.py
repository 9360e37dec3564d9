"""A step while it is being planned: the mutable side of `StepPlan`."""

from __future__ import annotations

from collections.abc import Container, Iterable

import attrs

from nanoserve.domain.kv.states import PlannedCopy
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import AdmittedRow, Chunk, StepPlan, StepResult, TableUpdate, TokenLogprobs

Progress = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its new token, and the token's log-probabilities where asked for."""
Stopped = tuple[Sequence, int, FinishReason]
"""A sequence, the token that it ends with, and why."""


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
        )
        self.admitted.append(admitted)

    def copy(self, copies: list[PlannedCopy]) -> None:
        """Add copies; most steps have none."""
        if copies:
            self.copies = (*self.copies, *copies)

    def withdraw(self, row: int) -> list[PlannedCopy]:
        """Forget every delta of a row; returns the copies that will not be done."""
        self.chunks = [entry for entry in self.chunks if entry[1].row != row]
        self.admitted = [each for each in self.admitted if each.row != row]
        self.table_updates = [update for update in self.table_updates if update.row != row]
        withdrawn = [each for each in self.copies if each.sequence.row == row]
        self.copies = tuple(each for each in self.copies if each.sequence.row != row)
        return withdrawn

    def seal(self, released: list[int], decoding: tuple[int, ...], masked: tuple[int, ...] = ()) -> StepPlan:
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
        self, result: StepResult, missed: Container[Sequence], *, is_cut_short: bool
    ) -> tuple[list[Progress], list[Stopped]]:
        """Append the tokens to their sequences: what each gained, and which of them end with what they gained.

        Where a row may have ended since the step was planned (`is_cut_short`), or has `missed` its draw, each is looked at.
        """
        rows = self.plan.sampling_rows
        scores: list[TokenLogprobs | None]
        scores = [result.logprobs.get(row) for row in rows] if result.logprobs else [None] * len(rows)
        if self.chunks or self.plan.masked or is_cut_short:
            return self._land_each(result.token_ids, scores, missed if self.plan.masked else ())
        decoding = self.decoding
        for tokens, token in zip(decoding.token_ids, result.token_ids, strict=True):
            tokens.append(token)
        nothing_stops = decoding.stop_ids.isdisjoint(result.token_ids)
        stopped = _stopped(self.through if nothing_stops else decoding.sequences)
        return list(zip(decoding.sequences, result.token_ids, scores, strict=True)), stopped

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
