"""A step that may have given rows several tokens lands as that many steps which give one.

First comes every row's first token, then the second of those that have one and still live. So what ends a sequence, its text included,
ends it at the same token as without drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Container

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import InFlightStep, Progress, Stopped, stopped_by
from nanoserve.domain.scheduling.wide_steps import surplus
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.step import StepResult


class Rounds:
    """The tokens of the step that was committed last; those in `left` have not landed."""

    def __init__(self, cache: KVCache, table: SequenceTable) -> None:
        self._cache, self._table = cache, table
        self.left: list[list[Progress]] = []

    def land(self, flight: InFlightStep, result: StepResult) -> tuple[list[Progress], list[Stopped]]:
        """As `InFlightStep.land`, of each row's first token; `land_more` has the others."""
        missed = self._table.constraints.missed
        self._table.counters.note_drafts(result)
        for sequence, lacks in surplus(flight, result):
            # The decode set corrects itself, and a sequence that sits out was corrected before.
            if sequence not in self._table.decoding and sequence not in missed:
                sequence.num_scheduled_tokens -= lacks
        self.left = _rounds(flight, result, missed)
        return self.land_more()

    def land_more(self) -> tuple[list[Progress], list[Stopped]]:
        """Append one more token of the step to each sequence that has one and lives; nothing when all of it is appended."""
        entries = self.left.pop(0) if self.left else []
        progress = [each for each in entries if each[0].finish_reason is None]
        for sequence, token, _ in progress:
            # As in `Scheduler.commit`: its last token is computed now, and was known before.
            if sequence.phase is Phase.RUNNING and not len(sequence.token_ids) % self._cache.block_size:
                self._cache.naming.share(sequence, len(sequence.token_ids))
            sequence.token_ids.append(token)
        return progress, stopped_by(progress)

    def forget(self) -> None:
        """No step counts any more."""
        self.left.clear()


def _rounds(flight: InFlightStep, result: StepResult, missed: Container[Sequence]) -> list[list[Progress]]:
    """The progress by rounds: each row's first token, then the second ones, and so on; those that have `missed` their draw have none."""
    rows, token_ids = flight.plan.sampling_rows, iter(result.token_ids)
    counts = result.counts or (1,) * len(rows)
    found: list[list[Progress]] = [[] for _ in range(max(counts, default=0))]
    decoding = flight.decoding.sequences if flight.decoding.has_unverified else ()
    unverified = {each for each in decoding if each.is_tentative}
    for sequence, row, count in zip(flight.sampling, rows, counts, strict=True):
        scores = result.logprobs.get(row, ()) if result.logprobs else ()
        gained = itertools.zip_longest(itertools.islice(token_ids, count), scores)
        for entries, (token, score) in zip(found, gained, strict=False):
            if sequence not in unverified and (not flight.plan.masked or sequence not in missed):
                entries.append((sequence, token, score))
    return found
