"""Runs of every kind, over a target of random numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from nanoserve.kernels.scatter_runs import reference
from nanoserve.kernels.scatter_runs.launch import SEGMENT, pack_runs, scatter_runs
from nanoserve.kernels.testing import Comparison, Inputs, expect

SIZE: Final = 5 * SEGMENT
Run = tuple[int, Sequence[int]]
RUNS: Final[dict[str, list[Run]]] = {
    "one-value": [(7, [-5])],
    "touching": [(0, [1, 2, 3]), (3, (4, 5)), (5, array("i", [6]))],
    "empty-between": [(10, [1]), (11, []), (40, [2, 3])],
    "last-place": [(SIZE - 1, [2**31 - 1])],
    "one-segment": [(100, range(SEGMENT))],
    "longer-than-a-segment": [
        (2500, array("i", range(2 * SEGMENT + 17))),
        (3, [9]),
        (60, range(SEGMENT + 1)),
    ],
    "of-every-length": [(5, [1, -2, 3]), (SEGMENT, range(2 * SEGMENT + 9)), (SIZE - 1, [-(2**31)])],
}


def check_scatter_runs(inputs: Inputs, runs: Sequence[Run] = RUNS["of-every-length"]) -> Iterator[Comparison]:
    """The target after packing into a buffer full of garbage, an upload of the used part, and the kernel."""
    before = inputs.integers(0, 1 << 30, SIZE)
    buffer = torch.full((8000,), -77, dtype=torch.int32, device="cpu")
    packed = pack_runs(runs, buffer)
    upload, rest = (buffer[part].to(inputs.device) for part in (slice(packed.size), slice(packed.size, None)))
    case = f"{packed.segments} segments"
    yield Comparison(f"buffer behind {case}", rest, torch.full_like(rest, -77), exact=True)
    target = expect(reference.scatter_runs(before, runs), before)
    yield from inputs.compare(scatter_runs, case, target=target, upload=upload, segments=packed.segments)
