"""Packed runs, pages and vectors land where they belong and nowhere else."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence

import pytest
import torch

from nanoserve.kernels.copies.cases import (
    RUNS,
    check_copy_pages,
    check_embed_newest,
    check_embed_tokens,
    check_scatter_runs,
)
from nanoserve.kernels.copies.launch import FEW, PackedRuns, embed_tokens, pack_runs, scatter_runs
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases


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


@pytest.mark.parametrize("count", [1, FEW])
def test_a_value_of_more_than_32_bits_is_refused(count: int) -> None:
    with pytest.raises((struct.error, OverflowError)):
        pack_runs([(0, [2**31] * count)], torch.empty(99, dtype=torch.int32))


def test_a_target_beyond_reach_of_32_bits_is_refused() -> None:
    target = torch.empty(2**31 + 1, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="2147483649 places"):
        scatter_runs(target, target, 1)


@cases("page", [(3, 5), (5000,)], also=[(32, 128, 128), (4, 8192)], ids=str)
def test_pages_are_copied_in_every_layer(page: tuple[int, ...], inputs: Inputs) -> None:
    agree(check_copy_pages(inputs, page, num_layers=3), 0)


SIZES = cases("size", [33], also=[16, 96, 1024])


@SIZES
@pytest.mark.parametrize("batch", [[2], [3, 0, 2, 1], [1, 1, 1], [0, 2, 1, 3, 1, 1]], ids=str)
def test_newest(batch: list[int], size: int, inputs: Inputs) -> None:
    agree(check_embed_newest(inputs, inputs.normal(50, size), places=batch), 0)


@SIZES
def test_tokens_by_row_and_position(size: int, inputs: Inputs) -> None:
    agree(check_embed_tokens(inputs, inputs.normal(50, size)), 0)


@pytest.mark.parametrize("half", [torch.float16, torch.float32])
def test_the_scale_is_rounded_to_the_dtype_of_the_vectors(half: torch.dtype, device: torch.device) -> None:
    inputs = Inputs(device, half)
    weight, scale = inputs.normal(50, 33), 2560**0.5
    agree(check_embed_newest(inputs, weight, scale=scale), 0)
    agree(check_embed_tokens(inputs, weight, scale), 0)


def test_rows_of_an_arena_wider_than_its_tokens(inputs: Inputs) -> None:
    agree(check_embed_newest(inputs, inputs.normal(50, 16), places=[3, 2, 1, 0], width=30), 0)


def test_drafts_behind_the_newest_token(inputs: Inputs) -> None:
    tokens, weight = inputs.these([[5, 6, 7, -1, 9], [3, 8, -1, 2, 1]]), inputs.normal(50, 16)
    rows, lengths, out = inputs.these([1, 0]), inputs.these([2, 1]), inputs.poisoned(8, 16)
    embed_tokens(tokens, rows, lengths, weight, out, newest=True, width=4)
    assert torch.equal(out, weight[[3, 8, 0, 2, 6, 7, 0, 9]])
