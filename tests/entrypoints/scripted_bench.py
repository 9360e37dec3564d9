"""Benchmark parts without torch, over the scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.assembly import BenchParts, Ceilings, KernelTime
from nanoserve.ports.sampling import SamplingParams
from tests.entrypoints.scripted_world import SPEC, scripted_assembly

SAMPLING = SamplingParams(temperature=0.6, ignore_eos=True, detokenize=False)


@attrs.define
class CountedWaits:
    """Claims to have waited one second more at every look."""

    looks: float = 0.0

    @property
    def late_compiles(self) -> int:
        return 0

    @property
    def device_wait_seconds(self) -> float:
        self.looks += 1.0
        return self.looks


def profile(work: Callable[[], object]) -> Sequence[KernelTime]:
    work()
    return [KernelTime("products", 10, 0.008), KernelTime("rest<T, [x]>", 1, 0.002)]


def scripted_parts(*, ceilings: Ceilings | None = None, counts: bool = False, **world: Any) -> BenchParts:
    assembly = scripted_assembly(**world)
    return BenchParts(
        engine=assembly.engine,
        spec=SPEC,
        budget=attrs.evolve(assembly.budget, max_num_seqs=world.get("max_num_seqs", 8)),
        waits=CountedWaits() if counts else None,
        element_bytes=2,
        profile=profile,
        measure_ceilings=lambda: ceilings,
    )
