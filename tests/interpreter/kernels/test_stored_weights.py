"""Products with weights as checkpoints store them equal those with the weights that they stand for."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.experts.cases import (
    check_feed_lists,
    check_feed_rows,
    random_choice,
    random_stored_experts,
)
from nanoserve.kernels.stored import VALUES, Form, StoredWeight
from nanoserve.kernels.trial import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
FORMS = cases("form", ["mxfp4", "fp8"], also=[])


@FORMS
@pytest.mark.parametrize("clamp", [None, 0.7])
@cases(
    "sizes",
    [(1, 2, 3, 160, 96), (3, 3, 4, 32, 1184)],
    also=[(1, 4, 8, 2880, 2880), (2, 8, 9, 512, 256)],
    ids=str,
)
def test_few_tokens(sizes: tuple[int, ...], form: Form, clamp: float | None, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_stored_experts(inputs, form, count, size, hidden, clamp=clamp)
    chosen = random_choice(inputs, tokens, slots, count)
    norm_weight = inputs.normal(hidden) + 1 if tokens == 1 else None
    agree(check_feed_rows(inputs, experts, chosen, norm_weight, 1e-3), TOLERANCE[inputs.dtype])


@FORMS
@pytest.mark.parametrize("clamp", [None, 0.7])
@cases("sizes", [(17, 3, 7, 32, 160)], also=[(40, 2, 5, 96, 288), (9, 2, 4, 160, 1184)], ids=str)
def test_lists_of_tokens(sizes: tuple[int, ...], form: Form, clamp: float | None, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_stored_experts(inputs, form, count, size, hidden, clamp=clamp)
    agree(
        check_feed_lists(inputs, experts, random_choice(inputs, tokens, slots, count)),
        TOLERANCE[inputs.dtype],
    )


@FORMS
@cases(("tokens", "slots", "experts"), [(17, 3, 7)], also=[(64, 8, 128), (300, 2, 4)])
def test_lists_with_the_tiles_of_half_precision(
    tokens: int, slots: int, experts: int, form: Form, device: torch.device
) -> None:
    half = Inputs(device, torch.float16)
    stored = random_stored_experts(half, form, experts, 32, 160)
    chosen = random_choice(half, tokens, slots, experts)
    agree(check_feed_lists(half, stored, chosen), TOLERANCE[torch.float16])


@FORMS
def test_edge_blocks_of_8_bit_floats_and_last_groups(form: Form, inputs: Inputs) -> None:
    """Hidden size and size leave a rest of a block, of a step and of what one thread loads."""
    hidden, size = (352, 224) if form == "mxfp4" else (203, 151)
    experts = random_stored_experts(inputs, form, 3, size, hidden)
    agree(check_feed_rows(inputs, experts, random_choice(inputs, 1, 2, 3)), TOLERANCE[inputs.dtype])
    agree(check_feed_lists(inputs, experts, random_choice(inputs, 9, 2, 3)), TOLERANCE[inputs.dtype])


def test_every_number_of_mxfp4_under_every_usual_scale(device: torch.device) -> None:
    """All 256 bytes, in groups with exponents from the least that has no subnormal numbers up; powers of two round nothing."""
    inputs = Inputs(device, torch.float32)
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(16, 16).repeat(1, 1)
    exponents = torch.arange(2, 129, 8, dtype=torch.uint8, device=device).view(16, 1)
    stored = StoredWeight(numbers, exponents)
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=device)
    low, high = values[(numbers & 15).long()], values[(numbers >> 4).long()]
    wanted = torch.stack((low, high), 2).view(16, 32) * 2.0 ** (exponents.float() - 127)
    assert torch.equal(stored.float(), wanted)
    del inputs
