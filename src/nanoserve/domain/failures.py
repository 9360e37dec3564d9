"""Failed steps: the sequences at fault end with an error, and all others are computed again.

If a runner names no row, the sequences of the step become suspects (`scheduling/isolation.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from nanoserve.domain.scheduling.isolation import by_row
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.ports.errors import RunnerLostError, StepFailedError
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan

FailureNote = Callable[[int, Exception, list[str]], None]
"""Called with the number of a failed step, the cause, and the ids of the requests that end because of it."""


class Failures:
    """The failed steps of one scheduler; `note` is called for each."""

    def __init__(self, scheduler: Scheduler, note: FailureNote | None) -> None:
        self._scheduler = scheduler
        self._note = note or (lambda *_: None)

    def blame(self, plan: StepPlan, error: Exception) -> None:
        """A step in flight has failed. Nothing stays in flight. Raises `RunnerLostError` if the runner cannot compute any more."""
        if isinstance(error, RunnerLostError):
            raise error
        scheduler = self._scheduler
        rows = error.guilty_rows if isinstance(error, StepFailedError) else ()
        number = next(number for number, each in enumerate(scheduler.flights) if each.plan is plan)
        guilty = scheduler.suspects.blame(scheduler.flights[number], scheduler.flights[:number], rows)
        for sequence in guilty:
            scheduler.table.finish(sequence, FinishReason.ERROR, _reason(error))
        preempt_all(scheduler)
        self._note(plan.step, error, [each.request.request_id for each in guilty])

    def end_broken(self, plan: StepPlan, rows: tuple[int, ...]) -> None:
        """End rows without a token; the other rows of the step continue if none of them has computed with the broken numbers.

        Raises `StepFailedError` if one has.
        """
        taken = self._scheduler.cache.naming.first_taken(plan.step, rows)
        computed, named = by_row(self._scheduler.flights[0]), taken or rows
        error = StepFailedError(f"step {plan.step}: logits of rows {named} are not finite", named)
        if taken:
            raise error
        ended = [computed[row] for row in rows if computed[row].finish_reason is None]
        for sequence in ended:
            self._scheduler.table.finish(sequence, FinishReason.ERROR, _reason(error))
        self._note(plan.step, error, [each.request.request_id for each in ended])


def preempt_all(scheduler: Scheduler) -> None:
    """Take every row back; all that run are computed again. Steps in flight are forgotten.

    The runner may never have seen the rows that those steps released, so the next step releases all there are.
    """
    cache, table = scheduler.cache, scheduler.table
    cache.states.cancel([each for flight in scheduler.flights for each in flight.copies])
    cache.naming.take_back()
    if cache.tiers is not None:
        cache.tiers.cancel()
    scheduler.flights.clear()
    # Nothing is in flight any more, so sequences of forgotten steps may be admitted again.
    scheduler.committed_step = table.step
    for sequence in list(table.rows.running):
        table.preempt(sequence)
    if scheduler.speculation is not None:
        scheduler.speculation.members.forget_flights()
    scheduler.rounds.forget()
    table.rows.release_all()
    table.loras.empty_slots()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
