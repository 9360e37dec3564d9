"""How wide the next step is: how many tokens each decoding row computes, its newest and drafts behind it (`ports/step.py`).

The answer does not depend on it, so a step is as wide as pays. Of a row whose drafts are right with probability a, a step of width w
brings (1 - a**w) / (1 - a) tokens on average; a is what was seen of the row lately, and a guess at first. What a step costs follows from
its tokens, which is measured when the engine starts (`Limits.step_seconds`); where it is not, steps are as wide as they may be.
"""

from __future__ import annotations

import bisect
from typing import Final

from nanoserve.domain.scheduling.sequence_table import Population
from nanoserve.domain.scheduling.steps import DecodingRows, InFlightStep
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
    """Drafts for the rows of one scheduler. They take nothing from anybody: where blocks or a step's budget are short, it is narrow."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._costs = sorted(population.limits.step_seconds)
        most = population.limits.max_width
        self._widths = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        self._rows: DecodingRows | None = None
        self._best = most
        self._narrow_steps = self._wide_steps = 0

    def choose_width(self) -> int:
        """Tokens that decoding rows compute in the next step; 0 where it must wait for steps in flight.

        A narrow step has no limits of rows on the device, so it waits until it is known that no row has come to its end.
        """
        population = self._population
        members, cache, limits = population.table.decoding, population.cache, population.limits
        if not members or cache.has_states or population.constraints.matchers or population.suspects:
            width = 1
        else:
            width = self._best_width(members.snapshot())
        blocks = -(-width // limits.block_size)
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
        budget = self._population.limits.max_num_batched_tokens
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

    def note(self, flight: InFlightStep, result: StepResult) -> None:
        """A step is about to land: see how many of each row's drafts were right."""
        population, width = self._population, flight.plan.width
        population.counters.draft_tokens += result.num_drafts
        population.counters.accepted_tokens += len(result.token_ids) - len(flight.sampling)
        for sequence, lacks in flight.surplus(result):
            if sequence not in population.table.decoding:  # the set finds out by itself
                sequence.num_scheduled_tokens -= lacks
        if width == 1:
            return
        population.counters.wide_steps += result.num_drafts > 0
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
