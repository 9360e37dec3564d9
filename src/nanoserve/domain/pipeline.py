"""The loop: plans steps, keeps up to `depth` of them in flight, and commits them in order.

With depth 1 it works in lock-step; with depth 2 the next step is planned and queued while the device still computes, because
planning needs to know only that a token exists, not which. Steps whose rows follow a grammar are drawn later than others
(`late_draws.py`), and steps may fail (`failures.py`). Next: the runner of a GPU, `adapters/pytorch/cuda/runner.py`.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from nanoserve.domain.answers import Answers
from nanoserve.domain.failures import FailureNote, Failures, preempt_all
from nanoserve.domain.late_draws import LateDraws
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.step import StepPlan

TicketT = TypeVar("TicketT")


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
        self._scheduler, self._runner, self._answers, self._depth = scheduler, runner, answers, depth
        self._in_flight: deque[tuple[StepPlan, TicketT]] = deque()
        self._failures = Failures(scheduler, on_failure)
        self._late_draws = LateDraws(scheduler)

    def __len__(self) -> int:
        """The number of steps in flight."""
        return len(self._in_flight)

    def advance(self, events: list[EngineEvent], *, fills: bool = True) -> None:
        """Fill the pipeline, unless it is only to be emptied, commit the oldest step, and append its events.

        A step that fails ends the sequences at fault, see `Failures`. Raises `RunnerLostError` where the runner cannot compute any more.
        """
        tiers = self._scheduler.cache.tiers
        try:
            if fills:
                self._fill()
            self._draw()
            if self._in_flight:
                self._bring_home_oldest(events)
            elif not self._scheduler.constraints.rest() and tiers is not None:
                tiers.rest()
        except BaseException:
            self._in_flight.clear()
            self._late_draws.is_undrawn = False
            preempt_all(self._scheduler)
            raise

    def _fill(self) -> None:
        # Behind a step that is not drawn there is one other at the most: its own masks can only be begun when this one is committed.
        while len(self._in_flight) < (min(self._depth, 2) if self._late_draws.is_undrawn else self._depth):
            if self._late_draws.is_undrawn and not self._late_draws.may_plan_ahead():
                self._draw()
            if (plan := self._scheduler.plan()) is None:
                return
            if self.recorder is not None:
                self.recorder.note_planned(self._scheduler.flights[-1])
            self._draw()
            if not self._scheduler.flights:
                return  # the draw has failed
            self._answers.tell_rows()
            try:
                if plan.masked and not self._in_flight:  # they are made while it is launched
                    self._late_draws.begin()
                ticket = self._runner.submit(plan)
            except Exception as error:  # noqa: BLE001 - whatever a runner raises must end in events, not in a dead loop
                self._fail(plan, error)
                return
            self._in_flight.append((plan, ticket))
            self._late_draws.is_undrawn = bool(plan.masked)

    def _bring_home_oldest(self, events: list[EngineEvent]) -> None:
        plan, ticket = self._in_flight.popleft()
        try:
            result = self._runner.collect(ticket)
            plan.check(result)
            if result.broken:
                self._failures.end_broken(plan, result.broken)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(plan, error)
            return
        flight = self._scheduler.flights[0]
        if result.pooled or result.prompt_logprobs or result.routed_experts:
            self._answers.take_byproducts(flight, result)
        gained = self._scheduler.commit(result)
        if self.recorder is not None:
            self.recorder.note_committed(flight, result, gained)
        try:
            if plan.width == 1:  # else matchers have not gone on yet by all that it brings
                self._draw(begin=True)  # the device waits for it, and events can be made meanwhile
        finally:
            self._answers.report(gained, events)
        while gained := self._scheduler.commit_more():
            if self.recorder is not None:
                self.recorder.note_gained(plan.step, gained)
            self._answers.report(gained, events)

    def _draw(self, *, begin: bool = False) -> None:
        """Draw a step with masked rows, or `begin` its masks, if all before it is committed."""
        if self._late_draws.is_undrawn and len(self._in_flight) == 1:
            plan, ticket = self._in_flight[0]
            try:
                if begin:
                    self._late_draws.begin()
                else:
                    self._late_draws.draw(ticket, self.recorder)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(plan, error)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        self._in_flight.clear()
        self._late_draws.is_undrawn = False
        self._failures.blame(plan, error)
