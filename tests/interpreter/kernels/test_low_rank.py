"""What adapters add to products equals its formula, whoever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.low_rank.cases import check_add_low_rank
from nanoserve.kernels.low_rank.launch import Product, Slots, add_low_rank
from nanoserve.kernels.low_rank.tuning import column_tiles, make_groups, most_groups
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

QKV = ((0, 70, 0), (70, 90, 1), (90, 110, 2))
CROWD = [token % 4 for token in range(40)]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tokens", [[2], [0, 3, 0], [1] * 17, CROWD])
def test_deltas_equal_the_reference(tokens: list[int], splits: int, inputs: Inputs) -> None:
    agree(check_add_low_rank(inputs, QKV, 200, tokens, splits=splits), TOLERANCES[inputs.dtype])


@cases("runs", [((0, 130, 0),)], also=[((0, 64, 0), (64, 128, 1)), ((0, 3, 0), (3, 4, 1))])
@cases("out_dtype", [torch.float32], also=[None])
def test_of_other_products(
    out_dtype: torch.dtype | None, runs: tuple[tuple[int, int, int], ...], inputs: Inputs
) -> None:
    found = check_add_low_rank(inputs, runs, 48, CROWD, tile=64, ranks=(128, 16, 64), out_dtype=out_dtype)
    agree(found, TOLERANCES[inputs.dtype])


def test_a_token_has_the_bits_it_has_alone(inputs: Inputs) -> None:
    runs, width, rank = ((0, 80, 0), (80, 96, 1)), 144, 32
    numbers = inputs.normal(2, rank * (2 * width + 96))
    slots = Slots(numbers, inputs.these([0, 32, 16]))
    product = Product(0, 2 * width, 2, inputs.these(column_tiles(runs)))
    x, slots_of_tokens = inputs.normal(21, width), [1, 2, 0] * 7

    def deltas(tokens: list[int]) -> torch.Tensor:
        made = make_groups(((slots_of_tokens[token], place, 1) for place, token in enumerate(tokens)), 16)
        out = torch.zeros(len(tokens), 96, dtype=inputs.dtype, device=inputs.device)
        shrunk = torch.empty(1, 21, 2 * rank, dtype=torch.float32, device=inputs.device)
        add_low_rank(
            *(x[tokens], out, slots, product),
            groups=inputs.these(made.groups),
            order=inputs.these(made.order),
            shrunk=shrunk,
            tile=16,
            splits=1,
        )
        return out

    together = deltas(list(range(21)))
    for token in (0, 1, 9, 19):
        assert torch.equal(deltas([token])[0], together[token])
    assert not together[2].any()


def test_groups_are_of_one_slot_and_hold_every_token_that_has_one() -> None:
    groups, order = make_groups([(2, 0, 20), (0, 20, 5), (1, 25, 1), (2, 26, 3)], 16)
    assert groups == [(2, 0, 16), (2, 16, 7), (1, 23, 1)]
    assert order == [*range(20), 26, 27, 28, 25]
    for tokens in (1, 5, 16, 64, 100):
        for slots in (1, 3, 32):
            spread = make_groups(((1 + token % slots, token, 1) for token in range(tokens)), 16)
            assert len(spread.groups) <= most_groups(tokens, slots, 16)
