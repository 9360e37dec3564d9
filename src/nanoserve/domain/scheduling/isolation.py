"""Isolation of faults: after a step that failed and named no row, or ended its engine, its sequences are tried one at a time.

A suspect is computed alone, one step at a time, until it has yielded the token after all tokens that the failed step could have
computed of it. So every suspect ends or gains a token, and repeated failures end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.request import TRIED


def by_row(flight: InFlightStep) -> dict[int, Sequence]:
    """The sequences that a step computes, by their rows."""
    rows = {chunk.row: sequence for sequence, chunk in flight.chunks}
    rows.update(zip(flight.plan.decoding, flight.decoding.sequences, strict=True))
    return rows


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
        computed = by_row(flight)
        guilty = [computed[row] for row in rows if row in computed]
        if guilty or len(computed) == 1:
            return guilty or list(computed.values())
        pending: Counter[Sequence] = Counter()
        for each in earlier:
            pending.update(each.sampling)
            pending.update(dict.fromkeys(each.decoding.sequences, each.plan.width - 1))
        alive = [each for each in computed.values() if each.phase is not Phase.FINISHED]
        for sequence in sorted(alive, key=lambda each: each.order):
            self[sequence] = len(sequence.token_ids) + pending[sequence]
        return []

    def accuse(self, sequences: Iterable[Sequence]) -> None:
        """These were computed when an engine died: each is tried up to its next tokens."""
        for sequence in sequences:
            self[sequence] = len(sequence.token_ids) + TRIED

    def acquit(self) -> Sequence | None:
        """Clear the suspect that is tried if it has passed its point; returns it where it must stand back, as others are left."""
        sequence = self.first
        if len(sequence.token_ids) <= self[sequence]:
            return None
        del self[sequence]
        return sequence if self else None
