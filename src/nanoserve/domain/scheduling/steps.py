"""A step on its way, in flight and landed; and the rows in steady decode, kept so that a step costs what changed and not what runs.

`reach` counts what planned steps compute of a row that decodes in all of them: a step of width w adds w. A row's newest planned position
is reach - offset, with an offset that is fixed when it joins. So its dates are known in advance: it needs a block at every reach at
which that position is a multiple of the block size, and it leaves after the step that computes its last token but one.

A wide step may yield fewer tokens than its width. Then the row's true position is lower than its dates say, by as much as only `commit`
learns. Dates that are too early do no harm, so nothing is done about them until one comes: then the row is looked at, and its offset is
set right (`_correct`). What steps in flight compute of it counts at its most, so that a block is there wherever it may come to.

A wide step yields several tokens per row, and lands as that many narrow ones would: first every row's first token, then the second of
those that have one and still live. So what ends a sequence, its text included, ends it at the same token as without drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable

import attrs

from nanoserve.domain.kv.states import PlannedCopy
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import (
    Chunk,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

Progress = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its new token, and the token's log-probabilities where asked for."""
_NO_SCORE: tuple[TokenLogprobs | None, ...] = (None,)
Stopped = tuple[Sequence, int, FinishReason]
"""A sequence, the token that it ends with (-1 for none), and why."""


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
    """Decoding sequences, by the residue of `reach` at which they need a block, and by the reach at which they are through.

    Attributes:
        reach, landed: tokens per row of the steps planned so far, and of those that are committed.
        is_exact: whether no offset can be too low: all steps since the offsets were set right are narrow.
    """

    def __init__(self, block_size: int) -> None:
        self.reach = self.landed = 0
        self.is_exact = True
        self._in_flight = 0
        self._block_size = block_size
        self._members: dict[Sequence, int] = {}
        self._by_residue: dict[int, dict[Sequence, None]] = {}
        self._by_last: dict[int, dict[Sequence, None]] = {}
        self._late: dict[Sequence, None] = {}
        self._snapshot: DecodingRows | None = DecodingRows()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    @property
    def slack(self) -> int:
        """By how much positions may be lower than the steps in flight have been planned for."""
        return self.reach - self.landed - self._in_flight

    def snapshot(self) -> DecodingRows:
        """The members; the same object while no sequence joins or leaves."""
        if self._snapshot is None:
            self._snapshot = DecodingRows.of(self._members)
        return self._snapshot

    def join(self, sequence: Sequence) -> None:
        """From the next step on, the sequence decodes; its next position is `num_scheduled_tokens`."""
        assert sequence.row is not None
        sequence.decode_offset = self.reach + 1 - sequence.num_scheduled_tokens
        self._members[sequence] = sequence.row
        self._note_dates(sequence, sequence.decode_offset)
        self._snapshot = None

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """The sequence decodes no more; `last_step` was its newest."""
        assert sequence.decode_offset is not None
        del self._members[sequence]
        self._late.pop(sequence, None)
        self._forget_dates(sequence, sequence.decode_offset)
        sequence.num_scheduled_tokens = self.num_planned(sequence)
        sequence.decode_offset = None
        sequence.last_step = last_step
        self._snapshot = None

    def repeat(self, sequence: Sequence) -> None:
        """The newest step, a narrow one, has yielded no token for a member: the next one computes the same position again."""
        self._move(sequence, self._exact_offset(sequence) + 1)

    def num_planned(self, sequence: Sequence) -> int:
        """How many tokens of a running sequence are computed once all planned steps are done; of drafts, the most that there can be."""
        if sequence.decode_offset is None:
            return sequence.num_scheduled_tokens
        return max(sequence.num_scheduled_tokens, self.reach - self._exact_offset(sequence) + 1)

    def advance(self, width: int) -> None:
        """A step of that width is planned."""
        self.reach += width
        self._in_flight += 1
        if width > 1:
            self.is_exact = False

    def land(self, width: int) -> None:
        """The oldest step in flight, of that width, has come home with its tokens."""
        self.landed += width
        self._in_flight -= 1

    def forget_flights(self) -> None:
        """No step in flight counts any more, and nothing decodes."""
        assert not self._members
        self.landed, self._in_flight, self.is_exact = self.reach, 0, True

    def tighten(self) -> None:
        """Set all offsets right, if that is known."""
        if not self.is_exact and not self.slack:
            for sequence in self._members:
                self._correct(sequence)
            self.is_exact = True

    def may_overrun(self) -> bool:
        """True if steps in flight may have brought a member to its end, so that a further one would compute too much."""
        for sequence in self._late:
            self._correct(sequence)
        return any(self._last(sequence) <= self.reach for sequence in self._late)

    def needing_blocks(self, width: int) -> list[Sequence]:
        """The members that may come to the first position of a block in the next step, of that width."""
        if width == 1:
            found = list(self._by_residue.get((self.reach + 1) % self._block_size, ()))
        else:
            residues = {(self.reach + ahead) % self._block_size for ahead in range(1, width + 1)}
            found = [each for residue in residues for each in self._by_residue.get(residue, ())]
        if not self.is_exact:
            for sequence in found:
                self._correct(sequence)
        return found

    def ends(self, width: int) -> tuple[list[Sequence], list[Sequence]]:
        """The members that the newest step, of that width, may bring to their end, and those of them that it does for certain."""
        reached = range(self.reach - width + 1, self.reach + 1)
        due = {each: None for last in reached for each in self._by_last.get(last, ())}
        if self.is_exact:
            return list(due), list(due)
        due.update(self._late)
        for sequence in due:
            self._correct(sequence)
        near = [each for each in due if self._last(each) <= self.reach]
        self._late = dict.fromkeys(near)
        return near, [each for each in near if self._last(each) + self.slack <= self.reach]

    def has_date(self, width: int) -> bool:
        """True if in the next step, of that width, a member needs a block, fills one or may compute its last."""
        residues, size, reach = self._by_residue, self._block_size, self.reach
        if width == 1 and self.is_exact:
            return (
                (reach + 1) % size in residues or (reach + 2) % size in residues or reach + 1 in self._by_last
            )
        ahead = range(reach + 1, reach + width + 1)
        return bool(self._late) or any(at % size in residues or at in self._by_last for at in ahead)

    def _exact_offset(self, sequence: Sequence) -> int:
        # As long as its first step is in flight it stands where it joined; then its newest token says where it is.
        assert sequence.decode_offset is not None
        return max(sequence.decode_offset, self.landed + 2 - len(sequence.token_ids))

    def _correct(self, sequence: Sequence) -> None:
        if (exact := self._exact_offset(sequence)) != sequence.decode_offset:
            self._move(sequence, exact)

    def _move(self, sequence: Sequence, offset: int) -> None:
        assert sequence.decode_offset is not None
        self._forget_dates(sequence, sequence.decode_offset)
        sequence.decode_offset = offset
        self._note_dates(sequence, offset)

    def _last(self, sequence: Sequence) -> int:
        """The reach at which its last token but one is computed."""
        assert sequence.decode_offset is not None
        return sequence.decode_offset + sequence.max_total_tokens - 2

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
        last = offset + sequence.max_total_tokens - 2
        return (self._by_residue, offset % self._block_size), (self._by_last, last)


@attrs.define(eq=False)
class InFlightStep:
    """A planned step that is not committed yet, with the sequences its rows stood for when it was planned.

    `filling` are those decoding sequences whose token in this step is the last of a block, and `through` those whose last one
    it yields. They are noted now, because when the step is committed the decode set stands several steps further, and its
    members may have left it. They are known while `is_exact`, as it is where neither this step nor one in flight before it is wide;
    else each sequence is looked at when the step lands.
    """

    plan: StepPlan
    chunks: tuple[tuple[Sequence, Chunk], ...]
    decoding: DecodingRows
    filling: list[Sequence]
    through: list[Sequence]
    planned_at: float
    copies: tuple[PlannedCopy, ...] = ()
    is_exact: bool = True

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
        if self.chunks or self.plan.masked or self.plan.step <= cut_short_at:
            (entries,) = self.rounds(result, missed) or ([],)
            # One that has ended since the step was planned: what was computed beyond the end is dropped.
            progress = [each for each in entries if each[0].finish_reason is None]
            for sequence, token, _ in progress:
                sequence.token_ids.append(token)
            return progress, stopped_by([each[0] for each in progress]) + self.land_vectors(result)
        scores: list[TokenLogprobs | None] = [None] * len(result.token_ids)
        if result.logprobs:
            scores = [result.logprobs.get(row, _NO_SCORE)[0] for row in self.plan.decoding]
        decoding = self.decoding
        for tokens, token in zip(decoding.token_ids, result.token_ids, strict=True):
            tokens.append(token)
        nothing_stops = decoding.stop_ids.isdisjoint(result.token_ids)
        stopped = stopped_by(self.through if nothing_stops else decoding.sequences)
        return list(zip(decoding.sequences, result.token_ids, scores, strict=True)), stopped

    def rounds(self, result: StepResult, missed: Container[Sequence]) -> list[list[Progress]]:
        """What the rows yield first, what those that yield more do second, and so on; those that have `missed` their draw do nothing."""
        rows, token_ids = self.plan.sampling_rows, iter(result.token_ids)
        counts = result.counts or (1,) * len(rows)
        found: list[list[Progress]] = [[] for _ in range(max(counts, default=0))]
        for sequence, row, count in zip(self.sampling, rows, counts, strict=True):
            scores = result.logprobs.get(row, ()) if result.logprobs else ()
            gained = itertools.zip_longest(itertools.islice(token_ids, count), scores)
            for entries, (token, score) in zip(found, gained, strict=False):
                if not self.plan.masked or sequence not in missed:
                    entries.append((sequence, token, score))
        return found

    def surplus(self, result: StepResult) -> list[tuple[Sequence, int]]:
        """By how much decoding rows that still run have yielded fewer tokens than a wide step's width, where they have."""
        counts = result.counts[len(result.counts) - len(self.plan.decoding) :]
        lacks = zip(self.decoding.sequences, counts, strict=bool(counts))
        width = self.plan.width
        return [(each, width - count) for each, count in lacks if count < width and each.row is not None]

    def land_vectors(self, result: StepResult) -> list[Stopped]:
        """The sequences that end with the vector of their prompt."""
        living = [each for each in self.chunks if each[1].pools and each[0].finish_reason is None]
        for sequence, chunk in living:
            sequence.pooled = result.pooled[chunk.row]
        return [(sequence, -1, FinishReason.STOP) for sequence, _ in living]


def stopped_by(sequences: Iterable[Sequence]) -> list[Stopped]:
    """Those that end with the newest of their tokens."""
    newest = [(each, each.token_ids[-1]) for each in sequences]
    return [
        (each, token, reason) for each, token in newest if (reason := each.stop_reason(token)) is not None
    ]
