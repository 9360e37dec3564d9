"""The tokens of a step that prompts may have: beside answers that are streamed, and under a bound of time, so that their gaps stay short; and of deferred sequences beside others."""

from __future__ import annotations

import math
from typing import Final

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.domain.sequence import Sequence

CROWD: Final = 128
_LEAST: Final = 1280
_EACH: Final = 5
_UNIT: Final = 256
GROUP: Final = 32
_BESIDE_FEW: Final = 4096
_BESIDE_GROUP: Final = 1024
_FEW: Final = 512
DEFERRED_CHUNK: Final = 128
"""The most tokens of deferred prompts in a step that others wait for, if it has no prompts of others."""
AFTERWARDS: Final = 0.1
"""Seconds that further deferred prompts wait for another request of others, as in a conversation."""


class PromptShares:
    """The prompts' shares of a scheduler's steps, with their `budget` under a bound of time. Deferred sequences, such as those of batches, use what others leave."""

    def __init__(self, limits: Limits, table: SequenceTable, cache: KVCache) -> None:
        self._limits, self._table, self._cache, itl = limits, table, cache, limits.max_itl
        self.budget = None if itl is None else ChunkBudget(max_itl=itl, floor=limits.block_size)
        self._last_answered = -math.inf

    def tokens(self, draft: Draft) -> int:
        """The tokens that prompts may have of a step beside the sequences that decode."""
        limits, num_decoding = self._limits, draft.decodes * len(self._table.decoding)
        least = draft.invariant * (limits.most_unverified + 1)
        left = limits.max_num_batched_tokens - draft.width * num_decoding
        left = min(left, self._most_beside(self._table.decoding.num_streamed))
        if self.budget is None:
            return left
        return max(self.budget.allowance(left, num_decoding), min(left, least))

    def _most_beside(self, streamed: int) -> int:
        """The most tokens that prompts have beside so many sequences whose tokens are read when they come.

        A step full of prompts takes ten times as long as one that only decodes, and holds up the tokens of all. Answers that begin together
        end together, so that the next prompts come together again. With five tokens for each row, prompts of up to five times their
        answers' lengths come along in every step. A multiple of 256, since steps of few sizes share their graphs.

        Beside fewer, larger steps go on while much waits for each row: a burst is read the sooner, and long prompts outweigh their answers.
        They are half of a usual budget, so that first tokens come twice as soon, at a price of 1 or 2% of the tokens.
        """
        if streamed >= CROWD:
            return max(_LEAST, _EACH * streamed // _UNIT * _UNIT)
        if streamed >= GROUP and not self._has_more(_FEW * streamed):
            return _BESIDE_GROUP
        return _BESIDE_FEW if streamed or self._reads_for_streams() else self._limits.max_num_batched_tokens

    def _reads_for_streams(self) -> bool:
        """True if the next prompt to be read is one whose answer is streamed."""
        first = self._table.prefilling[0] if self._table.prefilling else self._table.next_in_line()
        return first is not None and first.request.stream

    def _has_more(self, tokens: int) -> bool:
        """True if prompts that wait or are being read have more tokens than so many; deferred ones do not count."""
        table = self._table
        tokens -= sum(len(each.token_ids) - each.num_scheduled_tokens for each in table.prefilling)
        for sequence in table.waiting:
            if tokens < 0:
                break
            tokens -= 0 if sequence.is_deferred else len(sequence.token_ids)
        return tokens < 0

    def make_way(self, draft: Draft, now: float) -> None:
        """Preempt deferred sequences that are too many beside those that are being answered, will be or just were."""
        rows, first = self._table.rows, self._table.next_in_line()
        others = (each for each in (*rows.running, first) if each is not None and not each.is_deferred)
        if any(each.request.pooling is None for each in others):  # a client waits for each of its tokens
            self._last_answered = now
        rows.has_answers = now < self._last_answered + AFTERWARDS
        while rows.has_too_many_deferred():
            self._table.preempt(rows.youngest(), draft)

    def make_room(self, sequence: Sequence, draft: Draft) -> bool:
        """Preempt one without a grammar yet, or a deferred one, for one that waits; without its own that leaves the line instead. False if there is none."""
        table, rows = self._table, self._table.rows
        idle = (each for each in table.constraints.compiling if each.row is not None)
        victim = next((each for each in idle if each.last_step < draft.step), None)
        if sequence.awaits_grammar:
            table.waiting.pop(sequence)
            table.hold(sequence)
        elif victim or (rows.has_deferred and not sequence.is_deferred):
            table.preempt(victim or rows.youngest(), draft)
        else:
            return False
        return True

    def tokens_of_deferred(self, draft: Draft, left: int) -> int:
        """The number of a step's `left` tokens that deferred prompts may have. One that others have overtaken begins again behind them."""
        if self._limits.deferred_rows is not None and self._table.rows.has_answers:
            left = 0 if draft.chunks else min(left, DEFERRED_CHUNK)
        for each in [] if left <= 0 or self._cache.has_states else [*self._table.prefilling]:
            found = self._cache.match(each) * self._limits.block_size if each.is_deferred else 0
            if found > each.num_scheduled_tokens:
                self._table.preempt(each, draft)
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
