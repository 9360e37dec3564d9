"""What an engine host says of itself: facts once, and in its books what only the runner counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

import attrs

from nanoserve.entrypoints.assembly import Assembly
from nanoserve.entrypoints.config import EngineSettings
from nanoserve.entrypoints.stopwatch import Phase
from nanoserve.ports.engine_link import EngineFacts, EngineState


@runtime_checkable
class CountsLaunches(Protocol):
    """A runner that launches steps in more than one way."""

    @property
    def graph_steps(self) -> Mapping[str, int]:
        """Steps so far, by how they were launched."""
        ...


def engine_facts(settings: EngineSettings, assembly: Assembly, phases: Iterable[Phase]) -> EngineFacts:
    """What is settled now that the engine is built; `phases` are the parts of its start."""
    budget, limits = assembly.budget, assembly.engine.scheduler.limits
    decided = {name: value for name, value in attrs.asdict(budget).items() if name != "memory"}
    return EngineFacts(
        pid=os.getpid(),
        model=settings.model or "built-in",
        device=budget.device,
        dtype=budget.dtype,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=limits.block_size,
        num_kv_blocks=limits.largest_pool,
        prefix_caching=limits.prefix_caching,
        memory=budget.memory,
        start_phases={each.name: each.seconds for each in phases},
        budget=decided,
    )


def runner_counts(assembly: Assembly) -> Callable[[EngineState], EngineState]:
    """Completes the books with what the assembly's runner counts."""
    waits = assembly.waits

    def observe(state: EngineState) -> EngineState:
        if waits is None:
            return state
        return attrs.evolve(
            state,
            late_compiles=waits.late_compiles,
            device_wait_seconds=waits.device_wait_seconds,
            graph_steps=dict(waits.graph_steps) if isinstance(waits, CountsLaunches) else {},
        )

    return observe
