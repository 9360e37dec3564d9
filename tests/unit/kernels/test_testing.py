"""The harness of all cases finds what a launch leaves wrong, and gives it what serving gives it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.testing import Inputs, expect

INPUTS = Inputs(torch.device("cpu"), torch.bfloat16)
WANTED = torch.arange(6.0).view(2, 3)


def are_equal(launch: Callable[[Tensor], object]) -> bool:
    compared = list(INPUTS.compare(launch, out=expect(WANTED, dtype=torch.float32)))
    return all(torch.equal(each.got, each.wanted) for each in compared)


def test_a_launch_has_to_write_all_and_nothing_else() -> None:
    assert are_equal(lambda out: out.copy_(WANTED))
    assert not are_equal(lambda out: out[0].copy_(WANTED[0]))
    assert not are_equal(lambda out: out.copy_(WANTED + 1))
    assert not are_equal(lambda out: out.as_strided((3, 3), (3, 1)).fill_(0.0)[:2].copy_(WANTED))


@pytest.mark.parametrize(
    ("before", "asked", "given"),
    [
        (None, None, torch.bfloat16),
        (WANTED, None, torch.float32),
        (WANTED.bfloat16(), None, torch.bfloat16),
        (None, torch.float32, torch.float32),
    ],
)
def test_a_result_has_the_numbers_that_it_holds_before(
    before: Tensor | None, asked: torch.dtype | None, given: torch.dtype
) -> None:
    found = []
    list(INPUTS.compare(lambda out: found.append(out.dtype), out=expect(WANTED, before, dtype=asked)))
    assert found == [given]


@pytest.mark.parametrize(
    ("pdl", "chained", "launched"),
    [(True, False, [False, True]), (True, True, [True]), (False, False, [False]), (False, True, [False])],
)
def test_what_serving_launches_in_chains_alone_is_launched_so(
    pdl: bool, chained: bool, launched: list[bool]
) -> None:
    found: list[bool] = []

    def launch(out: Tensor, *, pdl: bool = False) -> None:
        found.append(pdl)

    inputs = Inputs(torch.device("cpu"), torch.bfloat16, pdl=pdl)
    list(inputs.compare(launch, chained=chained, out=expect(WANTED)))
    assert found == launched
