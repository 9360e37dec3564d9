"""A runner that computes nothing: every row yields a constant, as fast as Python can. For measuring the control plane."""

from __future__ import annotations

from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.step import StepPlan, StepResult


class ConstantRunner:
    """Yields `token_id` for every row that samples."""

    def __init__(self, token_id: int = 0) -> None:
        self._token_id = token_id

    def submit(self, plan: StepPlan, /) -> int:
        """Queue nothing; the ticket is the number of tokens to yield."""
        return len(plan.sampling_rows)

    def collect(self, ticket: int, /) -> StepResult:
        """As many constants as rows sampled."""
        return StepResult(token_ids=[self._token_id] * ticket)

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()
