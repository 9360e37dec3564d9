"""A runner that fails on request, in every way the port allows."""

from __future__ import annotations

import enum
from typing import Any

from nanoserve.ports.grammar import Masks
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import MemoryRunner


class Fault(enum.Enum):
    """Where a step fails, and how much of it the runner has done by then."""

    SUBMIT_LOST = "the plan is refused before anything of it is applied"
    SUBMIT_KEPT = "the plan is queued, then the call fails"
    COLLECT_LOST = "everything in flight is forgotten and nothing of it applied"
    COLLECT_LATE = "the step is computed, then its result is lost"
    TOKEN_MISSING = "one token too few comes back"
    TOKEN_EXTRA = "one token too many comes back"


class FlakyRunner(MemoryRunner):
    """A memory runner in which `fail` makes the next fitting call go wrong, once, and `fail_to_draw` the next drawing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fault: tuple[Fault, BaseException] | None = None
        self._draw_error: tuple[BaseException, bool] | None = None

    def fail(self, fault: Fault, error: BaseException | None = None) -> None:
        """Let the next step go wrong; `error` is what is raised."""
        self._fault = (fault, error or RuntimeError(fault.value))

    def fail_to_draw(self, error: BaseException, *, afterwards: bool) -> None:
        """Let the next step with masks go wrong before it is drawn, or `afterwards`."""
        self._draw_error = (error, afterwards)

    def heal(self) -> None:
        """Forget faults that did not come yet."""
        self._fault = self._draw_error = None

    def submit(self, plan: StepPlan, /) -> StepPlan:
        if (error := self._take(Fault.SUBMIT_LOST)) is not None:
            raise error
        self.keep(plan)
        if (error := self._take(Fault.SUBMIT_KEPT)) is not None:
            raise error
        return plan

    def keep(self, plan: StepPlan) -> None:
        """Queue a plan that is not refused."""
        super().submit(plan)

    def draw(self, ticket: StepPlan, masks: Masks, /) -> None:
        (error, afterwards), self._draw_error = self._draw_error or (None, False), None
        if error is None or afterwards:
            super().draw(ticket, masks)
        if error is not None:
            raise error

    def collect(self, ticket: StepPlan, /) -> StepResult:
        if (error := self._take(Fault.COLLECT_LOST)) is not None:
            self.queued.clear()
            raise error
        result = super().collect(ticket)
        if (error := self._take(Fault.COLLECT_LATE)) is not None:
            raise error
        if result.token_ids and self._take(Fault.TOKEN_MISSING):
            result.token_ids.pop()
        elif self._take(Fault.TOKEN_EXTRA):
            result.token_ids.append(0)
        return result

    def _take(self, fault: Fault) -> BaseException | None:
        if self._fault is None or self._fault[0] is not fault:
            return None
        (_, error), self._fault = self._fault, None
        return error
