"""Tokens are looked up where rows keep them."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.copies.cases import check_embed_newest, check_embed_tokens
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

SIZES = cases("size", [33], also=[16, 96, 1024])


@SIZES
@pytest.mark.parametrize("batch", [[2], [3, 0, 2, 1], [1, 1, 1], [0, 2, 1, 3, 1, 1]], ids=str)
def test_newest(batch: list[int], size: int, inputs: Inputs) -> None:
    agree(check_embed_newest(inputs, inputs.normal(50, size), batch), 0)


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
    agree(check_embed_newest(inputs, inputs.normal(50, 16), [3, 2, 1, 0], width=30), 0)
