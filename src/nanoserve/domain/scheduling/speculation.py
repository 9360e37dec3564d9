"""The width of the next step: the number of tokens that each decoding row computes, its newest and drafts after it (`ports/step.py`).

Answers do not depend on it, so the fastest width is chosen. If a row's drafts are right with probability a, a step of width w
brings (1 - a**w) / (1 - a) tokens on average where the row has drafts, and one where it has none: n-grams find nothing in the
steps behind an edit of a text that is copied. Both shares are estimated from the row's latest steps, and guesses at first. What a step costs
follows from its tokens and from what its guesses take, which is measured when the engine starts (`Limits.step_seconds`, `guess_seconds`);
where it is not, steps are as wide as they may be.

Drafts of rows with grammars are made here, of tokens that are known: so each step waits for the one before. That goes on while it brings
more than steps that follow each other closely, and is tried again after a while.
"""

from __future__ import annotations

import bisect
from typing import Final

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.rounds import Rounds
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import DecodingRows, InFlightStep, Progress, Stopped
from nanoserve.domain.scheduling.wide_steps import WideDecodeSet
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.grammar import MOST_DRAFTED
from nanoserve.ports.step import StepResult

LEARNING_RATE: Final = 0.125
PROBE_RATE: Final = 0.25
"""The weights of the newest step in the estimates of a row, and of one that tries drafts again; a row's first steps weigh more."""
CLEARLY_BETTER: Final = 1.03
"""A wide step must bring this many times the tokens of a narrow one in the same time."""
RECONSIDER: Final = 4
"""After so many wide steps, after one without a right draft, and when rows come or go, the width is chosen again."""
PROBE_AFTER: Final = 64
"""After so many narrow steps, or more where it costs more, one of two tokens shows whether drafts have become better."""
PROBE_SHARE: Final = 0.005
"""The share of the time of those before it that it may cost."""
IDLE_SECONDS: Final = 0.0003
"""Seconds that the device idles if a step waits for the one before."""
TRIAL: Final = 2.0
"""The initial estimate of tokens per row and step with drafts of grammars."""
TRIAL_RATE: Final = 1 / 32
TRY_AGAIN_AFTER: Final = 256


class Speculation:
    """Drafts for `members`, a scheduler's decode set. They displace no sequence: if blocks or a step's budget are short, the step is narrow.

    Attributes:
        drafts: for the next step, those of rows with grammars.
    """

    def __init__(self, limits: Limits, cache: KVCache, table: SequenceTable, rounds: Rounds) -> None:
        assert isinstance(table.decoding, WideDecodeSet)
        self._limits, self._cache, self._table, self.members = limits, cache, table, table.decoding
        self._costs, self._guesses = sorted(limits.step_seconds), sorted(limits.guess_seconds)
        most = limits.max_width
        self._widths = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        self._rows: DecodingRows | None = None
        self._best = most
        self.drafts: dict[Sequence, tuple[int, ...]] = {}
        self._per_row = TRIAL
        self._untried = 0
        self._narrow_steps = self._wide_steps = 0
        self._rounds = rounds

    def choose_width(self) -> int:
        """Tokens that decoding rows compute in the next step; 0 if it must wait for steps in flight.

        A narrow step has no limits of rows on the device, so it waits until it is known that no row has come to its end.
        """
        members, table = self.members, self._table
        self.drafts = {}
        if not members or table.suspects:
            width = 1
        elif table.constraints.matchers:
            width = self._masked_width(members.snapshot())
        else:
            width = self._best_width(members.snapshot())
        if not width:
            return 0
        blocks = -(-width // self._limits.block_size)
        if width > 1 and self._has_room(blocks * len(members.needing_blocks(width))):
            return width
        self.drafts = {}
        members.tighten()
        is_short = members.slack and not self._has_room(len(members.needing_blocks(1)))
        return 0 if is_short or members.may_overrun() else 1

    def _has_room(self, count: int) -> bool:
        """True if so many blocks are free in every group; a state takes none."""
        pools = zip(self._cache.laws, self._cache.allocators, strict=True)
        return all(law.snapshots is not None or pool.num_free >= count for law, pool in pools)

    def _best_width(self, rows: DecodingRows) -> int:
        """The fastest width; the last result is kept while nothing is learnt and the same rows decode."""
        if rows is not self._rows:
            self._rows = rows
            self._best = widest = self._widest(rows)
            if self._costs:
                most = [widest if each.sampling.drafts else 1 for each in rows.sequences]
                self._best = self._most_tokens_per_second(rows, most)
        if self._best > 1:
            return self._best
        self._narrow_steps += 1
        return min(2, self._widest(rows)) if self._should_probe(rows) else 1

    def _should_probe(self, rows: DecodingRows) -> bool:
        """True if it has been long enough, and some row wants drafts."""
        if self._narrow_steps <= PROBE_AFTER:
            return False
        count, wanted = len(rows.rows), (each.sampling.drafts for each in rows.sequences)
        costs = self._seconds(2 * count) / self._seconds(count) - 1
        return self._narrow_steps * PROBE_SHARE > costs and any(wanted)

    def _masked_width(self, rows: DecodingRows) -> int:
        """As `choose_width`, if some rows have grammars; makes their drafts."""
        constraints, count = self._table.constraints, len(rows.rows)
        bound = [each for each in rows.sequences if each in constraints.matchers]
        if not bound:
            return self._best_width(rows)
        widest = self._widest(rows, MOST_DRAFTED)
        if widest == 1 or not self._pays(count):
            return 1
        if self.members.in_flight:
            return 0
        self.drafts = {each: constraints.draft(each, widest - 1) for each in bound}
        most = [
            1 + len(self.drafts[each]) if each in self.drafts else widest if each.sampling.drafts else 1
            for each in rows.sequences
        ]
        width = self._most_tokens_per_second(rows, most)
        self.drafts = {each: found[: width - 1] for each, found in self.drafts.items()}
        if width == 1:
            self._per_row += TRIAL_RATE * (1 - self._per_row)
        return width

    def _pays(self, count: int) -> bool:
        """Find out if steps with drafts of grammars bring more than others."""
        wider = (self._seconds(2 * count) + IDLE_SECONDS) / self._seconds(count) if self._costs else 1.0
        pays = self._per_row > CLEARLY_BETTER * wider
        self._untried = 0 if pays else self._untried + 1
        if self._untried > TRY_AGAIN_AFTER:
            self._per_row, pays = TRIAL, True
        return pays

    def _widest(self, rows: DecodingRows, most: int = 1 << 30) -> int:
        budget = min(self._limits.max_num_batched_tokens, most)
        return max((width for width in self._widths if width * len(rows.rows) <= budget), default=1)

    def _most_tokens_per_second(self, rows: DecodingRows, most: list[int]) -> int:
        """The fastest width if rows yield `most` tokens in a step, each its own number."""
        widths = [each for each in self._widths if each < 2 * max(most)]
        if not self._costs:
            return widths[-1]
        speeds = {
            width: sum(map(_expected, rows.sequences, [min(width, bound) for bound in most]))
            / (self._seconds(width * len(most)) + (width - 1) * _interpolate(self._guesses, len(most)))
            for width in widths
        }
        best = max(speeds, key=lambda width: speeds[width])
        return best if speeds[best] > CLEARLY_BETTER * speeds[1] else 1

    def _seconds(self, num_tokens: int) -> float:
        return max(_interpolate(self._costs, num_tokens), 1e-9)

    def land(self, flight: InFlightStep, result: StepResult) -> tuple[list[Progress], list[Stopped]]:
        """As `InFlightStep.land`, of each row's first token; the rounds have the others."""
        self.members.land(flight.plan.width)
        if flight.is_exact:
            return flight.land(result, self._table.constraints.missed, self._table.cut_short_at)
        self._note(flight, result)
        return self._rounds.land(flight, result)

    def _note(self, flight: InFlightStep, result: StepResult) -> None:
        """Learn from how many drafts each row had, and how many of them were right."""
        if flight.plan.width == 1:
            return
        self._narrow_steps = 0
        self._wide_steps += 1
        counts = result.counts[len(result.counts) - len(flight.plan.decoding) :]
        if self._best == 1 or sum(counts) <= len(counts) or self._wide_steps % RECONSIDER == 0:
            self._rows = None
        if flight.plan.masked and counts:
            self._per_row += TRIAL_RATE * (sum(counts) / len(counts) - self._per_row)
        drafts = result.drafts[len(result.drafts) - len(counts) :] or (0,) * len(counts)
        rows = zip(flight.decoding.sequences, flight.plan.decoding, counts, drafts, strict=True)
        for sequence, row, count, had in rows:
            # That a grammar leaves a choice is known before the width is chosen.
            if count and (had or row not in flight.plan.masked):
                weight = PROBE_RATE if self._best == 1 else max(LEARNING_RATE, 1 / (2 + sequence.wide_steps))
                sequence.wide_steps += 1
                sequence.guessing += weight * ((had > 0) - sequence.guessing)
                if had:
                    sequence.acceptance += weight * ((count - 1) / min(count, had) - sequence.acceptance)


def _interpolate(measured: list[tuple[int, float]], count: int) -> float:
    """Seconds of so many tokens or rows, on the line through the two measured ones that are nearest; 0 where nothing is."""
    if len(measured) < 2:
        return measured[0][1] if measured else 0.0
    right = min(max(bisect.bisect_left(measured, (count, 0.0)), 1), len(measured) - 1)
    (low, fast), (high, slow) = measured[right - 1 : right + 1]
    return fast + (count - low) * (slow - fast) / (high - low)


def _expected(row: Sequence, width: int) -> float:
    """The tokens that a row yields in a step, on average."""
    rate = min(row.acceptance, 0.999)
    return 1 + row.guessing * ((1 - rate**width) / (1 - rate) - 1)
