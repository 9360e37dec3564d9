"""Deferred sequences, such as those of batches: they use what others leave, and have fewer rows and tokens beside answers of others."""

from __future__ import annotations

import math
from typing import Final

from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.sequence import Sequence

DEFERRED_CHUNK: Final = 128
"""The most tokens of deferred prompts in a step that others wait for, if it has no prompts of others."""
AFTERWARDS: Final = 0.1
"""Seconds that further deferred prompts wait for another request of others, as in a conversation."""


def _is_answered(sequence: Sequence) -> bool:
    """True if a client waits for each of its tokens."""
    return not sequence.is_deferred and sequence.request.pooling is None


class DeferredShare:
    """The share of a scheduler's steps that its deferred sequences may have."""

    def __init__(self, table: SequenceTable, *, is_bounded: bool) -> None:
        self._table, self._is_bounded = table, is_bounded
        self._last_answered = -math.inf

    def make_way(self, draft: Draft, now: float) -> None:
        """Preempt deferred sequences that are too many beside those that are being answered, will be or just were."""
        rows, first = self._table.rows, self._table.next_in_line()
        if any(map(_is_answered, rows.running)) or (first is not None and _is_answered(first)):
            self._last_answered = now
        rows.has_answers = now < self._last_answered + AFTERWARDS
        while rows.has_too_many_deferred():
            self._table.preempt(rows.youngest(), draft)

    def tokens(self, draft: Draft, left: int) -> int:
        """The number of a step's `left` tokens that deferred prompts may have."""
        if self._is_bounded and self._table.rows.has_answers:
            return 0 if draft.chunks else min(left, DEFERRED_CHUNK)
        return left
