"""Steps with drafts: a step of width w adds w to the reach, and a row yields as many tokens as were right.

Then the row's true position is lower than its dates say, by a number that only `commit` learns. Dates that are too early do no
harm, so they stay until one comes: then the row's offset is corrected (`_correct`). Steps in flight count with their most tokens,
so that a block is always there.
"""

from __future__ import annotations

from nanoserve.domain.scheduling.steps import DecodeSet, InFlightStep
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.step import StepResult


class WideDecodeSet(DecodeSet):
    """A `DecodeSet` whose steps may have drafts.

    Attributes:
        landed: tokens per row of the steps that are committed.
        in_flight: steps that are planned and not committed.
        is_exact: whether no offset can be too low: all steps since the offsets were set right are narrow.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.landed = 0
        self.in_flight = 0
        self._late: dict[Sequence, None] = {}

    @property
    def slack(self) -> int:
        """The most that positions may be below those that steps in flight were planned for."""
        return self.reach - self.landed - self.in_flight

    def leave(self, sequence: Sequence, last_step: int) -> None:
        self._late.pop(sequence, None)
        super().leave(sequence, last_step)

    def advance(self, width: int) -> None:
        super().advance(width)
        self.in_flight += 1
        if width > 1:
            self.is_exact = False

    def land(self, width: int) -> None:
        """The oldest step in flight, of that width, has returned with its tokens."""
        self.landed += width
        self.in_flight -= 1

    def forget_flights(self) -> None:
        """No step in flight counts any more, and nothing decodes."""
        assert not self._members
        self.landed, self.in_flight, self.is_exact = self.reach, 0, True

    def tighten(self) -> None:
        """Correct all offsets, if they are known."""
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
        """The members that may come to the first position of a block in the next step."""
        residues = {(self.reach + ahead) % self._block_size for ahead in range(1, width + 1)}
        found = [each for residue in residues for each in self._by_residue.get(residue, ())]
        if not self.is_exact:
            for sequence in found:
                self._correct(sequence)
        return found

    def span(self, sequence: Sequence, width: int) -> tuple[int, int]:
        """The positions, first and end, that the next step may compute of a member."""
        newest = self.reach + width - sequence.decode_offset
        return newest - self.slack - width + 1, min(newest + 1, sequence.max_total_tokens - 1)

    def ends(self, width: int) -> tuple[list[Sequence], list[Sequence]]:
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
        """True if in the next step a member needs a block, fills one or may compute its last."""
        if width == 1 and self.is_exact:
            return super().has_date(1)
        residues, size, reach = self._by_residue, self._block_size, self.reach
        ahead = range(reach + 1, reach + width + 1)
        return bool(self._late) or any(at % size in residues or at in self._by_last for at in ahead)

    def _offset(self, sequence: Sequence) -> int:
        # As long as its first step is in flight it stands where it joined; then its newest token says where it is.
        return max(sequence.decode_offset, self.landed + 2 - len(sequence.token_ids))

    def _correct(self, sequence: Sequence) -> None:
        if (exact := self._offset(sequence)) != sequence.decode_offset:
            self._move(sequence, exact)

    def _last(self, sequence: Sequence) -> int:
        """The reach at which its last token but one is computed."""
        return sequence.decode_offset + sequence.max_total_tokens - 2


def surplus(flight: InFlightStep, result: StepResult) -> list[tuple[Sequence, int]]:
    """By how much rows that still run have yielded fewer tokens than the step could have given them, where that was not known when it was drawn."""
    counts, width = result.counts, flight.plan.width
    chunks = [(each, 1 + chunk.unverified) for each, chunk in flight.chunks if chunk.samples]
    # What lacks a token because its mask was late, in a chunk or in a narrow step, was noted as it was drawn.
    lacks = [(each, most - count) for (each, most), count in zip(chunks, counts, strict=False) if count]
    newest = counts[len(counts) - len(flight.plan.decoding) :] if width > 1 else ()
    decoding = zip(flight.decoding.sequences, newest, strict=bool(newest))
    lacks += [(each, width - count) for each, count in decoding]
    return [(each, lack) for each, lack in lacks if lack and each.row is not None]
