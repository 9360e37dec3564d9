"""The runner of one rank among several: what goes wrong on one rank is not tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoserve.adapters.pytorch.cuda.drawing import CudaTicket
from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.grammar import Masks
from nanoserve.ports.step import StepPlan, StepResult


class RankRunner(CudaRunner):
    """`CudaRunner` of one rank; after any error the ranks are at different places, and none can go on."""

    def __init__(self, *, exchange: Exchange, **parts: Any) -> None:
        super().__init__(**parts)
        self._exchange = exchange

    def start_serving(self, phases: Mapping[str, float]) -> None:
        """See `CudaRunner`."""
        super().start_serving(phases)
        self._exchange.start_serving()

    def submit(self, plan: StepPlan, /) -> CudaTicket:
        """See `CudaRunner`. A rank that follows collects nothing, so that it learns here that it has missed another one."""
        self._exchange.check()
        return super().submit(plan)

    def draw(self, ticket: CudaTicket, masks: Masks, /) -> None:
        """See `CudaRunner`."""
        self._exchange.check()
        super().draw(ticket, masks)

    def collect(self, ticket: CudaTicket, /) -> StepResult:
        """Wait for a step's tokens. Raises `StepFailedError` where another rank was missed."""
        result = super().collect(ticket)
        self._exchange.check()
        return result

    def _attempt_with_less(self, plan: StepPlan, cause: Exception) -> CudaTicket:
        raise StepFailedError(f"step {plan.step}: out of device memory: {cause}") from cause
