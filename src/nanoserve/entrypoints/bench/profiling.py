"""A few steps under the profiler: where the device's time goes, kernel by kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.floors import decode_step_bytes
from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings, KernelTime
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.sampling import SamplingParams

STEPS: Final = 16
"""Decode steps to profile, where the load has as many."""


@attrs.frozen(kw_only=True)
class StepProfile:
    """The kernels that `steps` steps consisted of.

    Attributes:
        rows: sequences in the batch.
        seconds: by the wall's clock, the profiler's own cost included.
        bytes_per_step: what a decode step must read; None where prompts were profiled.
        floor_seconds: the least time for that; None where it is not known.
    """

    steps: int
    rows: int
    seconds: float
    kernels: Sequence[KernelTime]
    bytes_per_step: int | None = None
    floor_seconds: float | None = None


def profile_load(
    parts: BenchParts, load: BenchLoad, sampling: SamplingParams, ceilings: Ceilings | None
) -> StepProfile:
    """Profile steady decode steps of a load, or its prompts where next to nothing is decoded."""
    engine, rows = parts.engine, parts.facts.max_num_seqs
    load = attrs.evolve(load, prompts=load.prompts[:rows], output_lengths=load.output_lengths[:rows])
    requests = load.requests(sampling)
    turns = min(STEPS, min(load.output_lengths) - 2)
    for each in requests:
        engine.add(each)
    rows, read = len(requests), None
    if turns > 0:
        _read_prompts(engine)
        alive = engine.living()
        contexts = [each.num_prompt_tokens + each.num_generated_tokens + turns // 2 for each in alive]
        rows, read = len(alive), decode_step_bytes(parts, contexts)

    def work() -> None:
        for _ in range(turns):
            engine.turn()

    steps, began = engine.counts().steps, time.monotonic()
    kernels = parts.profile(work if turns > 0 else lambda: _read_prompts(engine))
    profile = StepProfile(
        steps=engine.counts().steps - steps,
        rows=rows,
        seconds=time.monotonic() - began,
        kernels=kernels,
        bytes_per_step=read,
        floor_seconds=read / ceilings.bandwidth if read and ceilings else None,
    )
    for each in requests:
        engine.abort(each.request_id)
    while engine.has_work:
        engine.turn()
    return profile


def _read_prompts(engine: EngineHandle) -> None:
    while any(not each.num_generated_tokens for each in engine.living()):
        engine.turn()
