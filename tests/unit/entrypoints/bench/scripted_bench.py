"""Benchmark parts without torch, over the scripted engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings, KernelTime
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.sampling import SamplingParams
from tests.inside import inside
from tests.unit.entrypoints.scripted_world import SPEC, scripted_assembly

SAMPLING = SamplingParams(temperature=0.6, ignore_eos=True, detokenize=False)


def profile(work: Callable[[], object]) -> Sequence[KernelTime]:
    work()
    return [KernelTime("products", 10, 0.008), KernelTime("rest<T, [x]>", 1, 0.002)]


def scripted_parts(*, ceilings: Ceilings | None = None, counts: bool = False, **world: Any) -> BenchParts:
    assembly = scripted_assembly(**world)
    if counts:
        _count_waits(assembly.engine)
    return BenchParts(
        engine=assembly.engine,
        spec=SPEC,
        facts=assembly.facts,
        element_bytes=2,
        profile=profile,
        measure_ceilings=lambda: ceilings,
    )


def _count_waits(engine: EngineHandle) -> None:
    """Let the runner claim to have waited one second more at every look."""
    looks = itertools.count(1)
    runner: Any = inside(engine)._runner
    runner.counts = lambda: RunnerCounts(device_wait_seconds=float(next(looks)))
