"""What ranks add up and gather equals its formulas, with the same bits on every rank."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.rank_sums.cases import check_add_ranks, check_add_slots, check_gather_ranks
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases
from tests.triton_interpreter import REACHED

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def make_blocks(ranks: int, device: torch.device) -> torch.Tensor:
    blocks = torch.zeros(ranks, 1 << 16, dtype=torch.uint8, device=device)
    REACHED.append(blocks)
    return blocks


@pytest.mark.parametrize("is_normed", [False, True])
@cases("ranks", [2], also=[3, 8])
def test_rows_of_all_ranks_are_added_and_normed(ranks: int, *, is_normed: bool, inputs: Inputs) -> None:
    weight = inputs.normal(96)
    branch_norm = inputs.normal(96, dtype=torch.float32) if is_normed else None
    blocks = make_blocks(ranks, inputs.device)
    results = check_add_ranks(inputs, blocks, weight, eps=1e-2, rows=3, branch_norm=branch_norm)
    agree(results, TOLERANCE[inputs.dtype])


@cases("ranks", [3], also=[2, 5])
def test_columns_of_all_ranks_are_put_side_by_side(ranks: int, inputs: Inputs) -> None:
    agree(check_gather_ranks(inputs, make_blocks(ranks, inputs.device), 3, 61), 0.0)


@pytest.mark.parametrize("is_biased", [False, True])
def test_slots_are_added(*, is_biased: bool, inputs: Inputs) -> None:
    bias = inputs.normal(40) if is_biased else None
    agree(check_add_slots(inputs, 3, 2, 40, bias), TOLERANCE[inputs.dtype])
