"""The rows in steady decode, kept so that a step costs what changed and not what runs.

A decoding row moves by one token per step: its position at step s is s - offset, with an offset fixed when it joins. So
its dates are known in advance: it needs a block at every step where the position is a multiple of the block size,
and it leaves after the step that computes its last token but one.
"""

from __future__ import annotations

from nanoserve.domain.scheduling.draft import DecodingRows
from nanoserve.domain.sequence import Sequence


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
        for dates, date in self._dates(sequence, offset):
            dates.setdefault(date, {})[sequence] = None
        self._snapshot = None

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """The sequence decodes no more; `last_step` was its newest."""
        offset = sequence.decode_offset
        assert offset is not None
        del self._members[sequence]
        for dates, date in self._dates(sequence, offset):
            del dates[date][sequence]
            if not dates[date]:
                del dates[date]
        sequence.num_scheduled_tokens = last_step - offset + 1
        sequence.decode_offset = None
        sequence.last_step = last_step
        self._snapshot = None

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

    def _dates(
        self, sequence: Sequence, offset: int
    ) -> tuple[tuple[dict[int, dict[Sequence, None]], int], ...]:
        last_step = offset + sequence.max_total_tokens - 2
        return (self._by_residue, offset % self._block_size), (self._by_last_step, last_step)
