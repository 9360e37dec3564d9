"""Drafts of the device are those of a plain search."""

from __future__ import annotations

import random

import pytest

from nanoserve.kernels.ngrams import launch
from nanoserve.kernels.ngrams.cases import check_propose_ngrams
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "TILE", 64)


@cases("width", [4], also=[2, 8])
def test_random_rows_are_searched_as_by_the_plain_search(width: int, inputs: Inputs) -> None:
    dice = random.Random(width)
    more = [[dice.randrange(dice.choice([2, 4])) for _ in range(dice.randint(1, 90))] for _ in range(30)]
    same_lane = [9] * 62 + [1, 2] + [30] + [9] * 61 + [1, 2] + [31] + [9] * 61 + [1, 2]
    more.append(same_lane)  # both matches end at the last place of a tile
    agree(check_propose_ngrams(inputs, width, more), 0)
