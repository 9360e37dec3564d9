"""The loop: plans steps, keeps up to `depth` of them in flight, and brings them home in order.

This loop is all there is. With depth 1 it works in lock-step; with depth 2 the next step is planned and queued while
the device still computes, because planning needs to know only that a token exists, not which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from nanoserve.domain.answers import Answers
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.errors import RunnerLostError, StepFailedError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepPlan, StepResult

TicketT = TypeVar("TicketT")
FailureNote = Callable[[int, Exception, list[str]], None]
"""Takes the number of a step that failed, why, and the ids of the requests that end for it."""


class Pipeline(Generic[TicketT]):
    """A scheduler's steps on their way through a runner; `on_failure` is called for each that fails.

    `recorder`, if there is one, is told of each step that is planned and committed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner[TicketT],
        answers: Answers,
        *,
        depth: int,
        on_failure: FailureNote | None,
    ) -> None:
        self.recorder: Recorder | None = None
        self._scheduler = scheduler
        self._runner = runner
        self._answers = answers
        self._depth = depth
        self._on_failure = on_failure or (lambda *_: None)
        self._in_flight: deque[tuple[StepPlan, TicketT]] = deque()
        self._is_undrawn = False

    def __len__(self) -> int:
        """How many steps are in flight."""
        return len(self._in_flight)

    def advance(self, events: list[EngineEvent], *, fills: bool = True) -> None:
        """Fill the pipeline, unless it is only to be emptied, bring home the oldest step, and append its events.

        A step that fails ends the sequences at fault with an error; all others are computed again. Where no sequence is known to
        be at fault, those of the step are tried one at a time. Raises `RunnerLostError` where the runner cannot compute any more.
        """
        constraints, tiers = self._scheduler.constraints, self._scheduler.cache.tiers
        try:
            if fills:
                self._fill()
            if self._in_flight:
                self._bring_home_oldest(events)
            elif constraints.compiling or constraints.late:
                constraints.rest()
            elif tiers is not None:
                tiers.rest()
        except BaseException:
            self._in_flight.clear()
            self._is_undrawn = False
            self._scheduler.preempt_all()
            raise

    def _fill(self) -> None:
        while (
            not self._is_undrawn and len(self._in_flight) < self._depth and (plan := self._scheduler.plan())
        ):
            if self.recorder is not None:
                self.recorder.note_planned(self._scheduler.flights[-1])
            try:
                ticket = self._runner.submit(plan)
            except Exception as error:  # noqa: BLE001 - whatever a runner raises must end in events, not in a dead loop
                self._fail(plan, error)
                return
            self._in_flight.append((plan, ticket))
            if plan.masked:
                self._is_undrawn = True
                self._draw()

    def _draw(self, *, begin: bool = False) -> None:
        """A step with masked rows is drawn as soon as all before it is committed, and nothing is planned behind it.

        Its masks may `begin` before. Other threads make them.
        """
        if not self._is_undrawn or len(self._in_flight) > 1:
            return
        self._is_undrawn = begin
        plan, ticket = self._in_flight[0]
        try:
            if begin:
                self._scheduler.constraints.begin(self._scheduler.flights[0])
            else:
                repeated = self._scheduler.draw(ticket)
                if self.recorder is not None:
                    self.recorder.note_repeated(repeated)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(plan, error)

    def _bring_home_oldest(self, events: list[EngineEvent]) -> None:
        plan, ticket = self._in_flight.popleft()
        try:
            result = self._collect(plan, ticket)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(plan, error)
            return
        if result.broken:
            taken = self._scheduler.cache.promises.first_taken(plan.step, result.broken)
            rows = taken or result.broken
            broken = StepFailedError(f"step {plan.step}: logits of rows {rows} are not finite", rows)
            if taken:
                self._fail(plan, broken)
                return
            self._end_broken(plan, broken)
        flight = self._scheduler.flights[0]
        gained = self._scheduler.commit(result)
        if self.recorder is not None:
            self.recorder.note_surplus(flight.surplus(result))
            self.recorder.note_committed(plan.step, gained)
        try:
            self._draw(begin=True)  # the device waits for it, and events can be made meanwhile
        finally:
            self._answers.report(gained, events)
        while gained := self._scheduler.commit_more():
            if self.recorder is not None:
                self.recorder.note_committed(plan.step, gained)
            self._answers.report(gained, events)
        self._draw()

    def _end_broken(self, plan: StepPlan, error: StepFailedError) -> None:
        """Rows that have no token end, and cost the others of the step nothing: none of those computes with their numbers."""
        by_row = self._scheduler.flights[0].by_row
        ended = [by_row[row] for row in error.guilty_rows if by_row[row].finish_reason is None]
        for sequence in ended:
            self._scheduler.finish(sequence, FinishReason.ERROR, _reason(error))
        self._on_failure(plan.step, error, [each.request.request_id for each in ended])

    def _collect(self, plan: StepPlan, ticket: TicketT) -> StepResult:
        result = self._runner.collect(ticket)
        asked, yielded = len(plan.sampling_rows), len(result.token_ids)
        counts = result.counts
        if counts and (len(counts) != asked or sum(counts) != yielded or max(counts) > plan.width):
            raise StepFailedError(f"{asked} rows were to yield up to {plan.width} tokens and {counts} came")
        if not counts and asked != yielded:
            raise StepFailedError(f"{asked} rows were to yield a token and {yielded} did")
        if {*plan.pooling_rows} != {*result.pooled}:
            raise StepFailedError(
                f"rows {plan.pooling_rows} were to yield vectors and {[*result.pooled]} did"
            )
        return result

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        if isinstance(error, RunnerLostError):
            raise error
        guilty = error.guilty_rows if isinstance(error, StepFailedError) else ()
        self._in_flight.clear()
        self._is_undrawn = False
        ended = self._scheduler.fail(plan, guilty, _reason(error))
        self._on_failure(plan.step, error, [each.request.request_id for each in ended])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
