"""The tokens of a step that prompts may have: under a bound of time, so that gaps of decoding sequences stay short, and of deferred sequences beside others."""

from __future__ import annotations

import math
from typing import Final

from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import InFlightStep

DEFERRED_CHUNK: Final = 128
"""The most tokens of deferred prompts in a step that others wait for, if it has no prompts of others."""
AFTERWARDS: Final = 0.1
"""Seconds that further deferred prompts wait for another request of others, as in a conversation."""


class PromptShares:
    """The prompts' shares of a scheduler's steps. Deferred sequences, such as those of batches, use what others leave."""

    def __init__(self, limits: Limits, table: SequenceTable) -> None:
        self._limits, self._table, itl = limits, table, limits.max_itl
        self._budget = None if itl is None else ChunkBudget(max_itl=itl, floor=limits.block_size)
        self._last_answered = -math.inf

    def tokens(self, draft: Draft, left: int) -> int:
        """The number of a step's `left` tokens that prompts may have under a bound of time."""
        if self._budget is None:
            return left
        invariant, limits = draft.invariant, self._limits
        num_decoding, least = (0, limits.most_unverified + 1) if invariant else (len(self._table.decoding), 0)
        return max(self._budget.allowance(left, num_decoding), min(left, least))

    def observe(self, flight: InFlightStep, last_commit: float, now: float) -> None:
        """Learn from a step that is committed now."""
        if self._budget is not None:
            self._budget.observe_step(flight, last_commit, now)

    def make_way(self, draft: Draft, now: float) -> None:
        """Preempt deferred sequences that are too many beside those that are being answered, will be or just were."""
        rows, first = self._table.rows, self._table.next_in_line()
        others = (each for each in (*rows.running, first) if each is not None and not each.is_deferred)
        if any(each.request.pooling is None for each in others):  # a client waits for each of its tokens
            self._last_answered = now
        rows.has_answers = now < self._last_answered + AFTERWARDS
        while rows.has_too_many_deferred():
            self._table.preempt(rows.youngest(), draft)

    def tokens_of_deferred(self, draft: Draft, left: int) -> int:
        """The number of a step's `left` tokens that deferred prompts may have."""
        if self._limits.deferred_rows is not None and self._table.rows.has_answers:
            return 0 if draft.chunks else min(left, DEFERRED_CHUNK)
        return left


class ChunkBudget:
    """Prefill tokens per step under an inter-token bound of `max_itl` seconds.

    The first allowance follows from the separate times of decoding and of prompts. Then a step that took too long makes the
    next ones smaller, and one that was nearly full and took less makes them larger, so what it takes beside its tokens need not be
    known. `floor` tokens are always allowed, so that prefill goes on however tight the bound.
    """

    def __init__(self, *, max_itl: float, floor: int) -> None:
        self._max_itl, self._floor = max_itl, floor
        self._decode_seconds = 0.0
        self._seconds_per_token: float | None = None
        self._allowed: float | None = None

    def allowance(self, budget: int, num_decoding: int) -> int:
        """The part of a step's remaining token budget that prefill may use beside `num_decoding` decoding rows."""
        allowed = self._allowed
        if allowed is None and self._seconds_per_token is not None:
            allowed = (self._max_itl - self._decode_seconds) / self._seconds_per_token
        return budget if num_decoding == 0 or allowed is None else min(budget, max(self._floor, int(allowed)))

    def observe_step(self, flight: InFlightStep, last_commit: float, now: float) -> None:
        """Learn from a step that is committed now; with several in flight, it could not begin before the one ahead of it was done."""
        num_prefill, num_decoding = sum(each.length for _, each in flight.chunks), len(flight.plan.decoding)
        if num_prefill + num_decoding and not flight.plan.invariant:
            seconds = now - max(flight.planned_at, last_commit)
            self.observe(num_prefill=num_prefill, num_decoding=num_decoding, seconds=seconds)

    def observe(self, *, num_prefill: int, num_decoding: int, seconds: float) -> None:
        """Learn from a step that took `seconds`; others may have been planned before it ended."""
        seconds = max(seconds, 1e-9)
        if num_prefill == 0:
            self._decode_seconds = seconds
        elif num_decoding == 0:
            self._seconds_per_token = seconds / num_prefill
        else:
            change = min(max(self._max_itl / seconds, 0.5), 2.0)
            wanted = max(num_prefill * change, float(self._floor))
            if self._allowed is None:
                self._allowed = wanted
            elif change < 1:
                self._allowed = min(self._allowed, wanted)
            elif num_prefill >= 0.75 * self._allowed:  # smaller steps do not show what more would take
                self._allowed = max(self._allowed, wanted)
