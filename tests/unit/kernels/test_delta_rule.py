"""The gated delta rule equals its recurrence, however rows are cut, over slots of NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.kernels.delta_rule import delta_rule, invariant_delta_rule, reference
from nanoserve.kernels.delta_rule.cases import random_tokens, random_weights
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights
from nanoserve.kernels.testing import Inputs

HEADS = DeltaHeads(3, 6, 12, 20, 4)
SLOT = 2


def empty(heads: DeltaHeads = HEADS, slots: int = 6) -> DeltaStates:
    sums = torch.full((slots, heads.num_value_heads, heads.key_dim, heads.value_dim), torch.nan)
    return DeltaStates(sums, torch.full((slots, heads.taps, heads.channels), torch.nan))


def tokens(count: int, heads: DeltaHeads = HEADS, *, seed: int = 0) -> tuple[Tensor, DeltaWeights]:
    inputs = Inputs(torch.device("cpu"), torch.float32, seed=seed)
    return random_tokens(inputs, heads, count), random_weights(inputs, heads)


def in_pieces(
    rule: Callable[..., Tensor], projected: Tensor, weights: DeltaWeights, cuts: Sequence[int]
) -> tuple[Tensor, ...]:
    """One row computed from cut to cut: its results, its sums and its recent inputs."""
    states, heads = empty(), HEADS
    results = [
        rule(
            projected[start:end],
            states,
            weights,
            heads,
            slots=torch.tensor([SLOT]),
            starts=(start,),
            lengths=(end - start,),
        )
        for start, end in pairwise([0, *cuts, len(projected)])
    ]
    others = [slot for slot in range(len(states.sums)) if slot != SLOT]
    assert states.sums[others].isnan().all()
    assert states.recent[others].isnan().all()
    return torch.cat(results), states.sums[SLOT], states.recent[SLOT]


def exact(projected: Tensor, weights: DeltaWeights) -> tuple[Tensor, ...]:
    rows = {"slots": [SLOT], "starts": [0], "lengths": [len(projected)]}
    results, states, _ = reference.delta_rule(projected, empty(), weights, HEADS, **rows)
    return results, states.sums[SLOT], states.recent[SLOT]


def close(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], tolerance: float = 2e-5) -> None:
    """To within `tolerance` of the largest number."""
    for each, right in zip(got, wanted, strict=True):
        atol = tolerance * right.nan_to_num().abs().max().clamp(min=1).item()
        torch.testing.assert_close(each, right, rtol=0, atol=atol, equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 64, 65, 127, 129])
def test_prompts_of_any_length(count: int) -> None:
    projected, weights = tokens(count, seed=count)
    close(in_pieces(delta_rule, projected, weights, ()), exact(projected, weights))


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 16, 63, 64, 65])
def test_a_prompt_in_chunks(cut: int) -> None:
    projected, weights = tokens(130)
    close(in_pieces(delta_rule, projected, weights, range(cut, 130, cut)), exact(projected, weights), 1e-5)


@given(st.sets(st.integers(1, 129), max_size=40))
@settings(max_examples=10, deadline=None)
def test_a_prompt_in_random_chunks(cuts: set[int]) -> None:
    projected, weights = tokens(130)
    close(in_pieces(delta_rule, projected, weights, sorted(cuts)), exact(projected, weights), 1e-5)


def test_cuts_at_whole_tiles_change_no_bit() -> None:
    projected, weights = tokens(200)
    whole = in_pieces(delta_rule, projected, weights, ())
    for each, right in zip(in_pieces(delta_rule, projected, weights, (64, 192)), whole, strict=True):
        assert torch.equal(each, right)


@pytest.mark.parametrize("cuts", [(), (1,), (2, 5, 8), (30,), range(1, 40)], ids=str)
def test_the_invariant_rule_has_the_same_bits_in_any_chunks(cuts: Sequence[int]) -> None:
    projected, weights = tokens(40)
    got = in_pieces(invariant_delta_rule, projected, weights, cuts)
    close(got, exact(projected, weights))
    for each, right in zip(
        got, in_pieces(invariant_delta_rule, projected, weights, range(1, 40)), strict=True
    ):
        assert torch.equal(each, right)


@pytest.mark.parametrize("rule", [delta_rule, invariant_delta_rule])
def test_ragged_rows_that_begin_and_go_on(rule: Callable[..., Tensor]) -> None:
    lengths, starts, slots = (1, 7, 1, 70, 2, 1), (5, 0, 0, 30, 1, 63), (3, 5, 1, 6, 2, 4)
    projected, weights = tokens(sum(lengths))
    states = empty(slots=8)
    draw = Inputs(torch.device("cpu"), torch.float32, seed=5)
    for slot, start in zip(slots, starts, strict=True):
        if start:
            states.sums[slot] = draw.normal(*states.sums[slot].shape)
            written = [position % HEADS.taps for position in range(max(0, start - HEADS.taps), start)]
            states.recent[slot, written] = draw.normal(len(written), HEADS.channels)
    rows = {"starts": starts, "lengths": lengths}
    wanted, after, _ = reference.delta_rule(projected, states, weights, HEADS, slots=slots, **rows)
    got = rule(projected, states, weights, HEADS, slots=torch.tensor(slots), **rows)
    close((got, *states), (wanted, *after))
    assert states.sums[[0, 7]].isnan().all()


def test_a_row_is_the_same_in_any_company() -> None:
    projected, weights = tokens(90)
    alone = in_pieces(delta_rule, projected[:1], weights, ())
    states = empty()
    crowd: dict[str, Any] = {
        "slots": torch.tensor([SLOT, 4, 1]),
        "starts": (0, 0, 0),
        "lengths": (1, 88, 1),
    }
    close((delta_rule(projected, states, weights, HEADS, **crowd)[:1],), alone[:1])


def test_tokens_in_bfloat16_follow_the_formula() -> None:
    projected, weights = tokens(70)
    projected = projected.bfloat16()
    weights = weights._replace(convolution=weights.convolution.bfloat16(), norm=weights.norm.bfloat16())
    got, *after = in_pieces(delta_rule, projected, weights, (33,))
    wanted, *right = exact(projected, weights)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), wanted, rtol=1e-2, atol=1e-2)
    close(tuple(after), tuple(right))


def test_keys_that_repeat_lose_nothing() -> None:
    """All changes of a tile then depend on one another: an inverse by a power series would be all rounding."""
    projected, weights = tokens(64)
    projected[:, HEADS.num_key_heads * HEADS.key_dim : 2 * HEADS.num_key_heads * HEADS.key_dim] = 1.5
    projected[:, -2 * HEADS.num_value_heads : -HEADS.num_value_heads] = 6.0
    projected[:, -HEADS.num_value_heads :] = -12.0
    close(in_pieces(delta_rule, projected, weights, ()), exact(projected, weights))


@pytest.mark.parametrize(
    ("rule", "count"), [(delta_rule, 4096), (invariant_delta_rule, 1024)], ids=["in tiles", "one by one"]
)
def test_thousands_of_tokens_drift_nowhere(rule: Callable[..., Tensor], count: int) -> None:
    heads = DeltaHeads(1, 2, 8, 8, 4)
    projected, weights = tokens(count, heads)
    rows = {"starts": (0,), "lengths": (count,)}
    states = empty(heads)
    got = rule(projected, states, weights, heads, slots=torch.tensor([SLOT]), **rows)
    wanted, after, _ = reference.delta_rule(projected, empty(heads), weights, heads, slots=[SLOT], **rows)
    close((got, *states), (wanted, *after))


def test_random_weights_remember_long_and_short() -> None:
    _, weights = tokens(1, DeltaHeads(8, 64, 4, 4, 4))
    rates = weights.decay_log.exp()
    assert rates.min() < 0.5
    assert rates.max() > 8
