"""Steps with rows that follow a grammar: they are drawn when their masks are made (`scheduling/constraints.py`).

The mask of a row depends on the value of its last token, its forward pass does not. So such a step is submitted like any other,
and drawn as soon as all steps before it are committed and its masks are there.

The next step is planned meanwhile, as if each row gave its token, and submitted behind the draw. A row whose mask is late keeps its tokens on
the device, so that the next step computes of it what this one has, whatever it was planned for; what was noted for that plan is set right.
"""

from __future__ import annotations

from typing import Final

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.scheduling.steps import InFlightStep
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.grammar import AT_FAULT
from nanoserve.ports.request import FinishReason

MOST_MISSES: Final = 4
"""Steps in a row that a row may compute for nothing, as its mask is late; then it sits out until it is there. To leave and to join again costs more than a few steps do."""


class LateDraws:
    """The step with masked rows that is in flight, if there is one.

    Attributes:
        is_undrawn: whether there is one that is not drawn yet; it is the newest in flight.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_undrawn = False
        self._misses: dict[Sequence, int] = {}

    def may_plan_ahead(self) -> bool:
        """True if the next step may be planned before it is drawn: a row that is late then computes in that what it has computed already."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        flight = scheduler.flights[-1]
        is_plain = flight.plan.width == 1 and not flight.chunks and not cache.has_states
        return is_plain and not (scheduler.table.num_deterministic or scheduler.verification.always)

    def begin(self) -> None:
        """Begin its masks."""
        self._scheduler.constraints.begin(self._scheduler.flights[0])

    def draw(self, ticket: object, recorder: Recorder | None) -> None:
        """Draw it. Rows with late masks compute their newest token again; the recorder notes it."""
        table, (flight, *planned) = self._scheduler.table, self._scheduler.flights
        ahead = planned[0] if planned else None
        self.is_undrawn = False
        drawn = self._scheduler.constraints.draw(flight, ticket)
        for sequence, reason in drawn.stuck.items():
            table.finish(sequence, FinishReason.ERROR, f"{AT_FAULT}{reason.removeprefix(AT_FAULT)}")
        table.counters.late_masks += len(drawn.late)
        self._misses = misses = {each: self._misses.get(each, 0) + 1 for each in drawn.late}
        late = [each for each in drawn.late if each.phase is Phase.RUNNING]
        again = [] if self._scheduler.cache.has_states else late  # a state has taken the token in
        # A wide step gives less than its width in any case, which is seen when it lands, unless it was to bring the last token.
        wide = flight.decoding.sequences if flight.plan.width > 1 else ()
        for sequence in again:
            sits_out = misses[sequence] >= MOST_MISSES
            if sits_out or sequence not in wide or sequence not in table.decoding:
                self._repeat(sequence, ahead, sits_out=sits_out)
        for sequence in [each for each in late if each not in again]:
            table.preempt(sequence)
        if recorder is not None:
            recorder.note_repeated([each for each in again if each not in wide])
            recorder.note_repeated([] if ahead is None else ahead.sitting_out)

    def _repeat(self, sequence: Sequence, ahead: InFlightStep | None, *, sits_out: bool) -> None:
        """Have a row compute its newest token again, in the step after this one, or when its mask is there."""
        table, decoding = self._scheduler.table, self._scheduler.table.decoding
        if ahead is not None and sequence not in ahead.decoding.sequences:
            ahead = None
        if sequence in decoding and not sits_out:
            decoding.repeat(sequence)
        else:
            if sequence in decoding:
                decoding.leave(sequence, table.step)
            sequence.num_scheduled_tokens = len(sequence.token_ids) - 1
            if sits_out and ahead is not None:
                ahead.sitting_out.append(sequence)
            elif not sits_out:
                sequence.num_scheduled_tokens += ahead is not None
                self._scheduler.verification.go_on(sequence)
        if ahead is not None:  # what it computes again may be the last token of a block
            ahead.filling.append(sequence)
