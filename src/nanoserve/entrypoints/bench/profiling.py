"""A few steps under the profiler: where the device's time goes, kernel by kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.floors import decode_step_bytes
from nanoserve.entrypoints.bench.measurement import abandon, run_until_decoding
from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings, KernelTime
from nanoserve.ports.sampling import SamplingParams

STEPS: Final = 16
"""Decode steps to profile, where the load has as many."""


@attrs.frozen(kw_only=True)
class StepProfile:
    """What `steps` steps consisted of.

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
    bytes_per_step: int | None
    floor_seconds: float | None


def profile_load(
    parts: BenchParts, load: BenchLoad, sampling: SamplingParams, ceilings: Ceilings | None
) -> StepProfile:
    """Profile steady decode steps of a load, or all of it where nothing is decoded."""
    rows = parts.facts.max_num_seqs
    load = attrs.evolve(load, prompts=load.prompts[:rows], output_lengths=load.output_lengths[:rows])
    turns = min(STEPS, min(load.output_lengths) - 2)
    if turns < 1:
        return _profile_prompts(parts, load, sampling)
    engine = parts.engine
    run_until_decoding(engine, load, sampling)
    alive = engine.living()
    contexts = [each.num_prompt_tokens + each.num_generated_tokens + turns // 2 for each in alive]
    read = decode_step_bytes(parts, contexts)

    def work() -> None:
        for _ in range(turns):
            engine.turn()

    profile = _profile(parts, work, rows=len(alive))
    abandon(engine, load, sampling)
    return attrs.evolve(
        profile, bytes_per_step=read, floor_seconds=read / ceilings.bandwidth if ceilings else None
    )


def _profile_prompts(parts: BenchParts, load: BenchLoad, sampling: SamplingParams) -> StepProfile:
    def work() -> None:
        run_until_decoding(parts.engine, load, sampling)

    profile = _profile(parts, work, rows=len(load.prompts))
    abandon(parts.engine, load, sampling)
    return profile


def _profile(parts: BenchParts, work: Callable[[], None], rows: int) -> StepProfile:
    steps, began = parts.engine.counts().steps, time.monotonic()
    kernels = parts.profile(work)
    return StepProfile(
        steps=parts.engine.counts().steps - steps,
        rows=rows,
        seconds=time.monotonic() - began,
        kernels=kernels,
        bytes_per_step=None,
        floor_seconds=None,
    )
