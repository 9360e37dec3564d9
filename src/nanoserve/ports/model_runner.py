"""The port to whatever computes steps: a GPU, a CPU, several ranks, or a scripted fake."""

from __future__ import annotations

from typing import Protocol, TypeVar

from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.step import StepPlan, StepResult

TicketT = TypeVar("TicketT")


class ModelRunner(Protocol[TicketT]):
    """Computes steps in the order they are submitted.

    A runner keeps one row of state per admitted sequence and applies each plan's deltas to it. `submit` may return
    before the step is computed; tickets are collected once each, in order. Either call may raise `StepFailedError`
    (or anything else): the engine then collects nothing more of the steps in flight, releases every row and
    goes on with a fresh plan, so a runner must accept a plan that releases rows it does not hold.
    """

    def submit(self, plan: StepPlan, /) -> TicketT:
        """Queue one step and return its ticket."""
        ...

    def collect(self, ticket: TicketT, /) -> StepResult:
        """Wait for a step and return what it yielded."""
        ...

    def counts(self) -> RunnerCounts:
        """What it has counted since it was built; read after every turn of a benchmark, so it costs next to nothing."""
        ...
