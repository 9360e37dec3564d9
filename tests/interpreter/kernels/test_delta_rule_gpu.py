"""The gated delta rule of a GPU equals its recurrence over slots of NaN."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.delta_rule.cases import check_delta_chunks, check_delta_newest
from nanoserve.kernels.recurrent import DeltaHeads
from nanoserve.kernels.trial import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = [DeltaHeads(3, 6, 12, 20, 4)]
LARGE = [DeltaHeads(2, 2, 16, 8, 4), DeltaHeads(1, 4, 8, 16, 3), DeltaHeads(16, 32, 128, 128, 4)]
TILED = pytest.mark.parametrize("tiled", [False, True], ids=["token by token", "in tiles"])
HEADS = cases("heads", SMALL, also=LARGE, ids=str)


@pytest.mark.parametrize("invariant", [False, True])
@HEADS
def test_newest_tokens(inputs: Inputs, heads: DeltaHeads, *, invariant: bool) -> None:
    agree(check_delta_newest(inputs, heads, invariant=invariant), TOLERANCE[inputs.dtype])


@TILED
@HEADS
def test_chunks(inputs: Inputs, heads: DeltaHeads, *, tiled: bool) -> None:
    agree(check_delta_chunks(inputs, heads, tiled=tiled), TOLERANCE[inputs.dtype])


@TILED
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65])
def test_chunks_shorter_and_longer_than_the_convolution(inputs: Inputs, length: int, *, tiled: bool) -> None:
    chunks = [(0, length), (1, length), (2, length), (130, length)]
    heads = DeltaHeads(1, 1, 8, 8, 4)
    agree(check_delta_chunks(inputs, heads, chunks, tiled=tiled), TOLERANCE[inputs.dtype])
