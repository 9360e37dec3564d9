"""How wide the next step is: how many tokens each decoding row computes, its newest and drafts behind it (`ports/step.py`).

The answer does not depend on it, so a step is as wide as pays. Of a row whose drafts are right with probability a, a step of width w
brings (1 - a**w) / (1 - a) tokens on average; a is what was seen of the row lately, and a guess at first. What a step costs follows from
its tokens, which is measured when the engine starts (`Limits.step_seconds`); where it is not, steps are as wide as they may be.
"""

from __future__ import annotations

import bisect
from typing import Final

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import DecodingRows, InFlightStep, Progress, Stopped, stopped_by
from nanoserve.domain.scheduling.wide_steps import WideDecodeSet, rounds, surplus
from nanoserve.domain.sequence import Phase
from nanoserve.ports.step import StepResult

LEARNING_RATE: Final = 0.25
"""How much the newest step changes what is thought of a row."""
CLEARLY_BETTER: Final = 1.03
"""A wide step must bring so many times the tokens of a narrow one in the same time."""
RECONSIDER: Final = 4
"""After so many wide steps, and when rows come or go, the width is chosen anew."""
PROBE_AFTER: Final = 64
"""After so many narrow steps a wide one shows whether drafts have become better."""


class Speculation:
    """Drafts for `members`, a scheduler's decode set. They take nothing from anybody: where blocks or a step's budget are short, it is narrow."""

    def __init__(self, limits: Limits, cache: KVCache, table: SequenceTable) -> None:
        assert isinstance(table.decoding, WideDecodeSet)
        self._limits, self._cache, self._table, self.members = limits, cache, table, table.decoding
        self._costs = sorted(limits.step_seconds)
        most = limits.max_width
        self._widths = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        self._rows: DecodingRows | None = None
        self._best = most
        self._narrow_steps = self._wide_steps = 0
        self._rounds: list[list[Progress]] = []

    def choose_width(self) -> int:
        """Tokens that decoding rows compute in the next step; 0 where it must wait for steps in flight.

        A narrow step has no limits of rows on the device, so it waits until it is known that no row has come to its end.
        """
        members, cache, table = self.members, self._cache, self._table
        if not members or cache.has_states or table.constraints.matchers or table.suspects:
            width = 1
        else:
            width = self._best_width(members.snapshot())
        blocks = -(-width // self._limits.block_size)
        if width > 1 and cache.has_room(blocks * len(members.needing_blocks(width))):
            return width
        members.tighten()
        is_short = members.slack and not cache.has_room(len(members.needing_blocks(1)))
        return 0 if is_short or members.may_overrun() else 1

    def _best_width(self, rows: DecodingRows) -> int:
        """What pays best; what was found last stands while nothing is learnt and the same rows decode."""
        if rows is not self._rows:
            self._rows = rows
            self._best = self._most_tokens_per_second(rows)
        if self._best > 1:
            return self._best
        self._narrow_steps += 1
        if self._narrow_steps <= PROBE_AFTER or not any(
            each.sampling.takes_drafts for each in rows.sequences
        ):
            return 1
        return self._widest(rows)

    def _widest(self, rows: DecodingRows) -> int:
        budget = self._limits.max_num_batched_tokens
        return max((width for width in self._widths if width * len(rows.rows) <= budget), default=1)

    def _most_tokens_per_second(self, rows: DecodingRows) -> int:
        widest, count = self._widest(rows), len(rows.rows)
        if not self._costs:
            return widest
        rates = [each.acceptance if each.sampling.takes_drafts else 0.0 for each in rows.sequences]
        speeds = {
            width: sum(_expected(rate, width) for rate in rates) / self._seconds(width * count)
            for width in self._widths
            if width <= widest
        }
        best = max(speeds, key=lambda width: speeds[width])
        return best if speeds[best] > CLEARLY_BETTER * speeds[1] else 1

    def _seconds(self, num_tokens: int) -> float:
        """What a step of so many tokens takes, on the line through the two measured ones that are nearest."""
        if len(self._costs) == 1:
            return self._costs[0][1]
        right = bisect.bisect_left(self._costs, (num_tokens, 0.0))
        right = min(max(right, 1), len(self._costs) - 1)
        (low, fast), (high, slow) = self._costs[right - 1 : right + 1]
        return max(fast + (num_tokens - low) * (slow - fast) / (high - low), 1e-9)

    def forget_flights(self) -> None:
        """No step in flight counts any more, and nothing decodes."""
        self.members.forget_flights()
        self._rounds.clear()

    def land(self, flight: InFlightStep, result: StepResult) -> tuple[list[Progress], list[Stopped]]:
        """As `InFlightStep.land`, of each row's first token; `land_more` has the others."""
        self._note(flight, result)
        self._rounds = rounds(flight, result, self._table.constraints.missed)
        progress, stopped = self.land_more()
        return progress, stopped + flight.land_vectors(result)

    def land_more(self) -> tuple[list[Progress], list[Stopped]]:
        """Append one more token of the step to each sequence that has one and lives; nothing when all of it is home."""
        entries = self._rounds.pop(0) if self._rounds else []
        progress = [each for each in entries if each[0].finish_reason is None]
        for sequence, token, _ in progress:
            # As in `Scheduler.commit`: its last token is computed now, and was known before.
            if sequence.phase is Phase.RUNNING and not len(sequence.token_ids) % self._limits.block_size:
                self._cache.share(sequence, len(sequence.token_ids))
            sequence.token_ids.append(token)
        return progress, stopped_by([each[0] for each in progress])

    def _note(self, flight: InFlightStep, result: StepResult) -> None:
        """See how many of each row's drafts were right."""
        counters, width = self._table.counters, flight.plan.width
        counters.draft_tokens += result.num_drafts
        counters.drafted_rows += result.drafted_rows
        counters.accepted_tokens += len(result.token_ids) - len(flight.sampling)
        for sequence, lacks in surplus(flight, result):
            if sequence not in self.members:  # the set finds out by itself
                sequence.num_scheduled_tokens -= lacks
        if width == 1:
            return
        self._narrow_steps = 0
        self._wide_steps += 1
        if self._best == 1 or self._wide_steps % RECONSIDER == 0:
            self._rows = None
        counts = result.counts[len(result.counts) - len(flight.plan.decoding) :]
        for sequence, count in zip(flight.decoding.sequences, counts, strict=True):
            if count:
                seen = (count - 1) / min(count, width - 1)
                sequence.acceptance += LEARNING_RATE * (seen - sequence.acceptance)


def _expected(rate: float, width: int) -> float:
    """The tokens that a row yields in a step, on average."""
    return float(width) if rate > 0.999 else (1 - rate**width) / (1 - rate)
