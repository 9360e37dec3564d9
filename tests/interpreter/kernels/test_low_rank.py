"""What adapters add to products equals its formula, whoever else is in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.forms import FORMS
from nanoserve.kernels.linear.cases import check_adapted
from nanoserve.kernels.linear.low_rank.cases import Runs, add_low_rank, check_add_low_rank
from nanoserve.kernels.linear.low_rank.launch import Adapters, Delta, Product
from nanoserve.kernels.linear.low_rank.tuning import (
    ITEM,
    PADDING,
    describe,
    most_items,
    most_partials,
    most_units,
    shrink_ways,
    slice_count,
)
from nanoserve.kernels.testing import Inputs, random_stored
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_product
from tests.interpreter.matrix import cases

QKV = ((0, 70, 0), (70, 90, 1), (90, 110, 2))
CROWD = [token % 4 for token in range(70)]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@cases(("slices", "tokens"), [(1, [2]), (3, [0, 3, 0]), (1, CROWD)], also=[(3, [1] * 17), (3, CROWD)])
def test_deltas_equal_the_reference(slices: int, tokens: list[int], inputs: Inputs) -> None:
    agree(check_add_low_rank(inputs, QKV, 600, tokens, slices=slices), TOLERANCES[inputs.dtype])


@cases("runs", [((0, 130, 0),)], also=[((0, 64, 0), (64, 128, 1)), ((0, 3, 0), (3, 4, 1))])
@cases("out_dtype", [torch.float32], also=[None])
def test_of_other_products(out_dtype: torch.dtype | None, runs: Runs, inputs: Inputs) -> None:
    found = check_add_low_rank(inputs, runs, 48, CROWD, ranks=(128, 16, 64), out_dtype=out_dtype)
    agree(found, TOLERANCES[inputs.dtype])


@cases(
    ("rows", "parts"),
    [
        (1, {"norm_weight": True, "eps": 0.5, "bias": True}),
        (1, {"gate": "silu", "norm_weight": True}),
        (5, {"bias": True}),
        (33, {"gate": "silu"}),
        (20, {"added": True}),
    ],
    also=[(1, {"added": True}), (5, {"gate": "gelu"}), (33, {"added": True, "bias": True})],
)
def test_products_add_deltas_themselves(rows: int, parts: dict[str, Any], inputs: Inputs) -> None:
    runs: Runs = ((0, 34, 0), (34, 68, 1)) if "gate" in parts else ((0, 60, 0), (60, 68, 1))
    product = random_product(inputs, 68, 600, **parts)
    agree(check_adapted(inputs, product, runs, [rows]), TOLERANCES[inputs.dtype])


@cases("form", ["int8"], also=["fp8", "int4", "mxfp4"])
def test_products_with_stored_weights_do(form: str, inputs: Inputs) -> None:
    weight = random_stored(inputs, FORMS[form], 66, 512)
    product = random_product(inputs, 66, 512)._replace(weight=weight)
    agree(check_adapted(inputs, product, ((0, 66, 0),), [1, 3]), TOLERANCES[inputs.dtype])


def test_a_token_has_the_bits_it_has_alone(inputs: Inputs) -> None:
    width, rank = 144, 32
    numbers = inputs.normal(3, rank * (2 * width + 96))
    product = Product(0, 2 * width, 2, inputs.these([0] * 80 + [1] * 16))
    x, slots_of_tokens = inputs.normal(21, width), [1, 2, 0, 3] * 5 + [1]

    def deltas(tokens: list[int]) -> torch.Tensor:
        made = describe(((slots_of_tokens[token], 1) for token in tokens), {1: 32, 2: 16, 3: 32})
        lists = (inputs.these(each + [0] * ITEM * PADDING).view(-1, ITEM) for each in made[:2])
        adapters = Adapters(numbers, *lists, *(inputs.these(each) for each in made[2:]))
        out = torch.zeros(len(tokens), 96, dtype=inputs.dtype, device=inputs.device)
        shrunk = torch.empty(1, len(tokens), 2 * rank, dtype=torch.float32, device=inputs.device)
        add_low_rank(x[tokens], out, Delta(adapters, product, shrunk, invariant=True))
        return out

    together = deltas(list(range(21)))
    for token in (0, 1, 3, 9, 19):
        assert torch.equal(deltas([token])[0], together[token])
    assert not together[2].any()


def test_units_are_of_one_slot_and_name_every_token_that_has_one() -> None:
    units, items, order, slots = describe([(2, 17), (0, 2), (1, 1), (2, 1)], {1: 16, 2: 32})
    assert units == [2, 0, 0, 0, 0, 2, 32, 0, 0, 18, 1, 16, 0, 18, 1]
    assert items[:15] == [5, 0, 0, 0, 0, 2, 32, 0, 0, 16, 2, 32, 0, 16, 2]
    assert order == [*range(17), 20, 19]
    assert slots == [*[2] * 17, 0, 0, 1, 2]


@pytest.mark.parametrize("tokens", [1, 5, 64, 100])
def test_units_and_items_fit_into_their_room(tokens: int) -> None:
    for slots in (1, 3, 32):
        spread = describe(((1 + token % slots, 1) for token in range(tokens)), dict.fromkeys(range(33), 64))
        assert spread.units[0] <= most_units(tokens, slots) - PADDING
        assert spread.items[0] <= most_items(tokens, slots, 64) - PADDING


def test_slices_fit_into_their_room() -> None:
    for tokens in (1, 16, 64, 256, 400, 512, 1000, 3000):
        counts = [slice_count(tokens, width, invariant=False) for width in (48, 4096, 14336)]
        assert max(counts) * tokens <= most_partials(tokens) <= most_partials(4096)


def test_every_way_to_cut_has_a_number_of_tokens_that_is_rehearsed() -> None:
    widths = (4096, 14336)
    assert shrink_ways(widths, 2048, invariant=False) == [1, 16, 64, 146, 256, 512, 2048]
    assert shrink_ways(widths, 100, invariant=False) == [1, 16, 64, 100]
    assert shrink_ways(widths, 2048, invariant=True) == [2048]
