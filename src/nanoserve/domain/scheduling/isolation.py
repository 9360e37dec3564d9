"""Isolation of faults: after a step that failed and named no row, its sequences are tried one at a time.

A suspect is computed alone, one step at a time, until it has yielded the token after all tokens that the failed step could have
computed of it. So every suspect ends or gains a token, and repeated failures end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.domain.sequence import Phase, Sequence


class Suspects(dict[Sequence, int]):
    """The sequences under suspicion, each with its point, in the order in which they are tried; while there are any, no other sequence runs.

    A sequence's point is the number of its tokens that the failed step could rely on, those in flight included.
    """

    @property
    def first(self) -> Sequence:
        """The suspect that is tried now."""
        return next(iter(self))

    def blame(
        self, flight: InFlightStep, earlier: Iterable[InFlightStep], rows: Iterable[int]
    ) -> list[Sequence]:
        """The sequences in the `rows` that are at fault for a failed step; a sequence alone in its step is at fault anyway.

        Where none is, the living ones of the step become suspects, and the steps `earlier` than it are forgotten together with it.
        """
        by_row = flight.by_row
        guilty = [by_row[row] for row in rows if row in by_row]
        if guilty or len(by_row) == 1:
            return guilty or list(by_row.values())
        pending: Counter[Sequence] = Counter()
        for each in earlier:
            pending.update(each.sampling)
            pending.update(dict.fromkeys(each.decoding.sequences, each.plan.width - 1))
        alive = [each for each in by_row.values() if each.phase is not Phase.FINISHED]
        for sequence in sorted(alive, key=lambda each: each.order):
            self[sequence] = len(sequence.token_ids) + pending[sequence]
        return []

    def acquit(self) -> Sequence | None:
        """Clear the suspect that is tried if it has passed its point, and return it."""
        sequence = self.first
        if len(sequence.token_ids) <= self[sequence]:
            return None
        del self[sequence]
        return sequence
