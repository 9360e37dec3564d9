"""The rows in steady decode, kept so that a step costs what changed and not what runs.

A decoding row moves by one token per step: its position at step s is s - offset, with an offset fixed when it joins. So
its dates are known in advance: it needs a block at every step where the position is a multiple of the block size,
and it leaves after the step that computes its last token but one.
"""

from __future__ import annotations

import operator

import attrs

from nanoserve.domain.sequence import Sequence

_token_ids = operator.attrgetter("token_ids")
_stop_ids = operator.attrgetter("stop_ids")


@attrs.frozen(eq=False)
class Decoding:
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
    def of(cls, members: dict[Sequence, int]) -> Decoding:
        """The members of the set, with their rows."""
        token_ids, stop_ids = map(_token_ids, members), map(_stop_ids, members)
        return cls(tuple(members), tuple(members.values()), tuple(token_ids), frozenset().union(*stop_ids))


class DecodeSet:
    """Decoding sequences, by the step residue at which they need a block and by the step at which they are through."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._members: dict[Sequence, int] = {}
        self._by_residue: dict[int, dict[Sequence, None]] = {}
        self._by_last_step: dict[int, dict[Sequence, None]] = {}
        self._snapshot: Decoding | None = Decoding()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def snapshot(self) -> Decoding:
        """The members; the same object while no sequence joins or leaves."""
        if self._snapshot is None:
            self._snapshot = Decoding.of(self._members)
        return self._snapshot

    def join(self, sequence: Sequence, step: int) -> None:
        """From `step` on, the sequence decodes; its next position is `num_scheduled_tokens`."""
        assert sequence.row is not None
        offset = step - sequence.num_scheduled_tokens
        sequence.decode_offset = offset
        self._members[sequence] = sequence.row
        self._by_residue.setdefault(offset % self._block_size, {})[sequence] = None
        self._by_last_step.setdefault(_last_step(sequence, offset), {})[sequence] = None
        self._snapshot = None

    def leave(self, sequence: Sequence, last_step: int) -> None:
        """The sequence decodes no more; `last_step` was its newest."""
        offset = sequence.decode_offset
        assert offset is not None
        del self._members[sequence]
        _take_out(sequence, self._by_residue, offset % self._block_size)
        _take_out(sequence, self._by_last_step, _last_step(sequence, offset))
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
        """Whether at `step` a member needs a block, fills one or computes its last."""
        residues, size = self._by_residue, self._block_size
        return step % size in residues or (step + 1) % size in residues or step in self._by_last_step


def _last_step(sequence: Sequence, offset: int) -> int:
    return offset + sequence.max_total_tokens - 2


def _take_out(sequence: Sequence, dates: dict[int, dict[Sequence, None]], date: int) -> None:
    """Only dates that a sequence has are kept."""
    del dates[date][sequence]
    if not dates[date]:
        del dates[date]
