"""A step in flight, and the rows in steady decode, kept so that a step costs its changes and not its rows.

`reach` counts the tokens that planned steps compute of a row that decodes in all of them: one for each step. A row's newest planned
position is reach - offset, with an offset that is fixed when it joins. So its dates are known in advance: it needs a block at every reach
at which that position is a multiple of the block size, and it leaves after the step that computes its last token but one.

Steps with drafts compute several tokens of a row, and dates are less certain: `wide_steps.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import attrs

from nanoserve.domain.kv.states import PlannedCopy
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import Chunk, StepPlan, StepResult, TokenLogprobs

Progress = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its new token, and the token's log-probabilities where asked for."""
NO_SCORE: tuple[TokenLogprobs | None, ...] = (None,)
Dates = dict[int, dict[Sequence, None]]
Stopped = tuple[Sequence, int, FinishReason]
"""A sequence, the token that it ends with, and why."""


@attrs.frozen(eq=False)
class DecodingRows:
    """The decoding sequences at one moment, column by column: a step that none joins or leaves reads no sequence.

    Attributes:
        sequences, rows: in the same order.
        token_ids: their lists of tokens, which are longer with every step that is committed.
        stop_ids: what may end one of them.
        has_unverified: whether some are tentative: what they gain is not known to be right yet.
    """

    sequences: tuple[Sequence, ...] = ()
    rows: tuple[int, ...] = ()
    token_ids: tuple[list[int], ...] = ()
    stop_ids: frozenset[int] = frozenset()
    has_unverified: bool = False


NONE_DECODE: Final = DecodingRows()


class DecodeSet:
    """Decoding sequences, by the residue of `reach` at which they need a block, and by the reach at which they are done.

    Attributes:
        reach: tokens per row of the steps planned so far; `num_streamed` counts members whose clients read each token when it comes.
        is_exact: whether all dates are what they will be.
    """

    def __init__(self, block_size: int) -> None:
        self.reach = self.num_streamed = 0
        self.is_exact, self._block_size = True, block_size
        self._members: dict[Sequence, int] = {}
        self._by_residue: Dates = {}
        self._by_last: Dates = {}
        self._snapshot: DecodingRows | None = DecodingRows()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def snapshot(self) -> DecodingRows:
        """The members; the same object while no sequence joins or leaves."""
        if self._snapshot is None:
            members = tuple(self._members)
            stop_ids = frozenset[int]().union(*{each.stop_ids for each in members})
            token_ids, rows = tuple([each.token_ids for each in members]), tuple(self._members.values())
            unverified = any(each.is_tentative for each in members)
            self._snapshot = DecodingRows(members, rows, token_ids, stop_ids, unverified)
        return self._snapshot

    def join(self, sequence: Sequence) -> None:
        """From the next step on, the sequence decodes; its next position is `num_scheduled_tokens`."""
        assert sequence.row is not None
        self._members[sequence] = sequence.row
        self.num_streamed += sequence.request.stream
        self._note_dates(sequence, self.reach + 1 - sequence.num_scheduled_tokens)
        self._snapshot = None

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """The sequence decodes no more; `last_step` was its newest."""
        sequence.num_scheduled_tokens = self.num_planned(sequence)
        sequence.last_step = last_step
        del self._members[sequence]
        self.num_streamed -= sequence.request.stream
        self._forget_dates(sequence)
        self._snapshot = None

    def follow(self, flight: InFlightStep) -> list[Sequence]:
        """Note in a step that is planned now what its members come to; those whose last token it computes leave, and are returned.

        They are computed in this step all the same: its rows were taken before.
        """
        width = flight.plan.width
        self.advance(width)
        flight.is_exact = self.is_exact
        if self.is_exact:
            flight.filling = self.needing_blocks(1)
        flight.through, through = self.ends(width)
        for sequence in through:
            self.leave(sequence, flight.plan.step)
        for sequence, chunk in flight.chunks:
            if chunk.samples and sequence.num_scheduled_tokens + 1 < sequence.decode_end:
                self.join(sequence)
        return through

    def repeat(self, sequence: Sequence) -> None:
        """The newest step has yielded no token for a member: the next one computes the same position again."""
        self._move(sequence, self._offset(sequence) + 1)

    def num_planned(self, sequence: Sequence) -> int:
        """The number of tokens of a running sequence that are computed once all planned steps are done."""
        if sequence not in self._members:
            return sequence.num_scheduled_tokens
        return self.reach - self._offset(sequence) + 1

    def advance(self, width: int) -> None:
        """A step is planned that computes `width` tokens of each row."""
        self.reach += width

    def needing_blocks(self, _width: int) -> list[Sequence]:
        """The members that come to the first position of a block in the next step."""
        return list(self._by_residue.get((self.reach + 1) % self._block_size, ()))

    def span(self, sequence: Sequence, _width: int) -> tuple[int, int]:
        """The positions, first and end, that the next step computes of a member."""
        newest = self.reach + 1 - self._offset(sequence)
        return newest, newest + 1

    def ends(self, _width: int) -> tuple[list[Sequence], list[Sequence]]:
        """The members that the newest step may end, and those that it certainly ends."""
        due = list(self._by_last.get(self.reach, ()))
        return due, due

    def has_date(self, _width: int) -> bool:
        """True if in the next step a member needs a block, fills one or computes its last token but one."""
        residues, size, ahead = self._by_residue, self._block_size, self.reach + 1
        return ahead % size in residues or (ahead + 1) % size in residues or ahead in self._by_last

    def _offset(self, sequence: Sequence) -> int:
        return sequence.decode_offset

    def _move(self, sequence: Sequence, offset: int) -> None:
        self._forget_dates(sequence)
        self._note_dates(sequence, offset)

    def _note_dates(self, sequence: Sequence, offset: int) -> None:
        sequence.decode_offset = offset
        for dates, date in self._dates(sequence):
            dates.setdefault(date, {})[sequence] = None

    def _forget_dates(self, sequence: Sequence) -> None:
        for dates, date in self._dates(sequence):
            del dates[date][sequence]
            if not dates[date]:
                del dates[date]

    def _dates(self, sequence: Sequence) -> tuple[tuple[Dates, int], ...]:
        offset = sequence.decode_offset
        last = offset + sequence.decode_end - 2
        return (self._by_residue, offset % self._block_size), (self._by_last, last)


@attrs.define(eq=False)
class InFlightStep:
    """A planned step that is not committed yet, with the sequences its rows stood for when it was planned.

    `filling` are those decoding sequences whose token in this step is the last of a block, and `through` those whose last one it
    yields. They are noted now, because when the step is committed the decode set is several steps further, and its members may
    have left it. They are known while `is_exact`. Those `sitting_out` compute for nothing: that they would was not known then.
    """

    plan: StepPlan
    chunks: tuple[tuple[Sequence, Chunk], ...]
    decoding: DecodingRows
    planned_at: float
    copies: tuple[PlannedCopy, ...] = ()
    filling: list[Sequence] = attrs.field(factory=list)
    through: list[Sequence] = attrs.field(factory=list)
    is_exact: bool = True
    sitting_out: list[Sequence] = attrs.field(factory=list)

    @property
    def sampling(self) -> tuple[Sequence, ...]:
        """The sequences that yield a token, in the order of `StepResult.token_ids`."""
        return tuple(sequence for sequence, chunk in self.chunks if chunk.samples) + self.decoding.sequences

    def land(
        self, result: StepResult, missed: Container[Sequence], cut_short_at: int
    ) -> tuple[list[Progress], list[Stopped]]:
        """Append the tokens to their sequences; returns the gains, and the sequences that end with them.

        What was computed for a row that has ended since (one has `cut_short_at` this step or later), has `missed` its draw or is not verified is dropped.
        """
        rows, logprobs = self.plan.sampling_rows, result.logprobs
        scores = [logprobs.get(row, NO_SCORE)[0] for row in rows] if logprobs else [None] * len(rows)
        progress = list(zip(self.sampling, result.token_ids, scores, strict=True))
        any_may_end = bool(self.chunks) or self.plan.step <= cut_short_at
        if any_may_end or self.plan.masked or self.decoding.has_unverified:
            progress = [
                each
                for each in progress
                if not (each[0].finish_reason or each[0].is_tentative or each[0] in missed)
            ]
            for sequence, token, _ in progress:
                sequence.token_ids.append(token)
        else:
            for tokens, token in zip(self.decoding.token_ids, result.token_ids, strict=True):
                tokens.append(token)
        if any_may_end or not self.decoding.stop_ids.isdisjoint(result.token_ids):
            return progress, stopped_by(progress)
        through = {*self.through}
        return progress, stopped_by([each for each in progress if each[0] in through] if through else ())


def stopped_by(progress: Iterable[Progress]) -> list[Stopped]:
    """The sequences that end with their new token."""
    return [(each, token, reason) for each, token, _ in progress if (reason := each.stop_reason(token))]
