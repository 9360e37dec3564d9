"""Benchmark parts without torch, over the scripted engine."""

from __future__ import annotations

import itertools
from typing import Any

from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.sampling import SamplingParams
from tests.inside import inside
from tests.unit.entrypoints.scripted_world import SPEC, scripted_assembly

SAMPLING = SamplingParams(temperature=0.6, ignore_eos=True, detokenize=False)


def scripted_parts(*, counts: bool = False, **world: Any) -> BenchParts:
    """With `counts` the runner claims to have waited one second more at every look."""
    assembly = scripted_assembly(**world)
    if counts:
        looks = itertools.count(1)
        runner: Any = inside(assembly.engine)._runner
        runner.counts = lambda: RunnerCounts(device_wait_seconds=float(next(looks)))
    return BenchParts(engine=assembly.engine, spec=SPEC, facts=assembly.facts)
