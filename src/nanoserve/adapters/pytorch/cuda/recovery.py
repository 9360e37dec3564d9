"""Recovery from a step that failed half-way: host and device agree again, and a step without memory is tried once more.

Recovery waits for the device, drops writes that were not sent, and counts draws again. A step that found no memory is tried again
with all graphs dropped, unless it has drawn already: a second draw would append a second token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import attrs
import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.graphs import Graphs
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import StepPlan

Compute = Callable[[StepPlan], CudaTicket]
"""Queues a plan's step."""


@attrs.define(eq=False)
class Recovery:
    """Knows whether the host and the device of one runner agree, which is in doubt after a failure.

    `frees` says whether memory is given back after a step that found none, and `retries` whether that step is then tried again.
    A model with states leaves its rows to be computed again instead: states may have been advanced already.
    """

    _arena: Arena
    _batches: Batches
    _drawing: Drawing
    _graphs: Graphs | None
    _frees: bool = attrs.field(kw_only=True)
    _retries: bool = attrs.field(kw_only=True)
    _in_doubt: bool = attrs.field(default=False, init=False)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Recover if the last block failed; this one leaves doubt unless it comes to its end, even by a KeyboardInterrupt."""
        if self._in_doubt:
            self.recover()
        self._in_doubt = True
        yield
        self._in_doubt = False

    def attempt(self, plan: StepPlan, compute: Compute) -> CudaTicket:
        """Compute a plan's step, or raise `StepFailedError` if there is no memory for it."""
        tickets_before = self._drawing.num_tickets
        try:
            return compute(plan)
        except torch.OutOfMemoryError as error:
            if not self._frees or self._drawing.num_tickets > tickets_before:
                raise _out_of_memory(plan, error) from error
            self.recover()
            if self._graphs is not None:
                self._graphs.drop()
            torch.cuda.empty_cache()
            if not self._retries:
                raise _out_of_memory(plan, error) from error
        try:
            return compute(plan)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(plan, error) from error

    def recover(self) -> None:
        """Send nothing more of a step that failed half-way, and agree with the device about the number of draws."""
        if self._arena.lengths.is_cuda:
            torch.cuda.synchronize()
        self._arena.forget()
        self._batches.dissolve()
        self._drawing.find_ring()


def _out_of_memory(plan: StepPlan, error: Exception) -> StepFailedError:
    return StepFailedError(f"step {plan.step}: out of device memory: {error}")
