"""Packed runs land where they belong and nowhere else."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence

import pytest
import torch

from nanoserve.kernels.copies.cases import RUNS, check_scatter_runs
from nanoserve.kernels.copies.launch import PackedRuns, pack_runs, scatter_runs
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS.keys())
def test_runs_land_where_they_belong(runs: list[tuple[int, Sequence[int]]], device: torch.device) -> None:
    agree(check_scatter_runs(Inputs(device, torch.float32), runs), 0)


def test_many_random_runs(device: torch.device) -> None:
    draw = random.Random(5)
    places = sorted(draw.sample(range(5000), 41))
    runs = [
        (start, [draw.randrange(-(2**31), 2**31) for _ in range(draw.randrange(end - start + 1))])
        for start, end in itertools.pairwise(places)
    ]
    draw.shuffle(runs)
    agree(check_scatter_runs(Inputs(device, torch.float32), runs), 0)


@pytest.mark.parametrize("runs", [[], [(3, [])]], ids=["none", "empty"])
def test_nothing_to_write_launches_nothing(
    runs: list[tuple[int, Sequence[int]]], device: torch.device
) -> None:
    buffer = torch.empty(0, dtype=torch.int32)
    assert pack_runs(runs, buffer) == PackedRuns(0, 0)
    scatter_runs(torch.empty(0, dtype=torch.int32, device=device), buffer, 0)


def test_a_buffer_may_be_just_full_but_not_too_small() -> None:
    runs = [(0, [1, 2]), (9, [3])]
    assert pack_runs(runs, torch.empty(9, dtype=torch.int32)) == PackedRuns(2, 9)
    with pytest.raises(ValueError, match="9 integers to upload do not fit into a buffer of 8"):
        pack_runs(runs, torch.empty(8, dtype=torch.int32))


def test_a_value_of_more_than_32_bits_is_refused() -> None:
    with pytest.raises(struct.error):
        pack_runs([(0, [2**31])], torch.empty(9, dtype=torch.int32))


def test_a_target_beyond_reach_of_32_bits_is_refused() -> None:
    target = torch.empty(2**31 + 1, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="2147483649 places"):
        scatter_runs(target, target, 1)
