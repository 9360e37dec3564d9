"""A runner that fails on request, in every way the port allows."""

from __future__ import annotations

import enum

from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import MemoryRunner
from tests.unit.domain.world import World


class Fault(enum.Enum):
    """Where a step fails, and how much of it the runner has done by then."""

    SUBMIT_LOST = "the plan is refused before anything of it is applied"
    SUBMIT_KEPT = "the plan is queued, then the call fails"
    COLLECT_LOST = "everything in flight is forgotten and nothing of it applied"
    COLLECT_LATE = "the step is computed, then its result is lost"
    TOKEN_MISSING = "one token too few comes back"
    TOKEN_EXTRA = "one token too many comes back"


class FlakyRunner:
    """Passes everything on to a memory runner; `fail` makes the next fitting call go wrong, once."""

    def __init__(self, inner: MemoryRunner) -> None:
        self._inner = inner
        self._fault: tuple[Fault, BaseException] | None = None

    def fail(self, fault: Fault, error: BaseException | None = None) -> None:
        """Let the next step go wrong; `error` is what is raised."""
        self._fault = (fault, error or RuntimeError(fault.value))

    def heal(self) -> None:
        """Forget a fault that did not come yet."""
        self._fault = None

    def submit(self, plan: StepPlan, /) -> StepPlan:
        if (error := self._take(Fault.SUBMIT_LOST)) is not None:
            raise error
        self._inner.submit(plan)
        if (error := self._take(Fault.SUBMIT_KEPT)) is not None:
            raise error
        return plan

    def collect(self, ticket: StepPlan, /) -> StepResult:
        if (error := self._take(Fault.COLLECT_LOST)) is not None:
            self._inner._queued.clear()
            raise error
        result = self._inner.collect(ticket)
        if (error := self._take(Fault.COLLECT_LATE)) is not None:
            raise error
        if result.token_ids and self._take(Fault.TOKEN_MISSING):
            result.token_ids.pop()
        elif self._take(Fault.TOKEN_EXTRA):
            result.token_ids.append(0)
        return result

    def counts(self) -> RunnerCounts:
        return RunnerCounts()

    def _take(self, fault: Fault) -> BaseException | None:
        if self._fault is None or self._fault[0] is not fault:
            return None
        (_, error), self._fault = self._fault, None
        return error


def make_flaky(world: World) -> FlakyRunner:
    """Put a flaky runner between a world's engine and its runner."""
    flaky = FlakyRunner(world.runner)
    world.engine._runner = flaky
    return flaky
