"""A mixture of experts on a GPU equals its formula in float32, whoever chooses what, and leaves no trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.experts.cases import (
    check_choose_experts,
    check_feed_lists,
    check_feed_rows,
    random_choice,
)
from nanoserve.kernels.experts.launch import (
    ExpertsWorkspace,
    choose_experts,
    feed_lists,
    feed_rows,
    list_pairs,
)
from nanoserve.kernels.experts.reference import Chosen, Routing
from nanoserve.kernels.experts.tuning import (
    down_row_tile,
    gate_up_row_tile,
    list_tile,
    most_tiles,
    sorting,
)
from nanoserve.kernels.testing import POISON, Comparison, Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_experts
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
ROUTINGS = {  # the families' own, over as many experts as stand in front
    "qwen3": (7, Routing(top=3)),
    "olmoe": (5, Routing(top=2, normalized=False)),
    "deepseek v2": (12, Routing(top=3, groups=3, top_groups=2, normalized=False, scale=1.5)),
    "deepseek v3": (
        12,
        Routing(
            top=3,
            score="sigmoid",
            groups=3,
            top_groups=2,
            group_score="top2",
            sum_eps=1e-20,
            scale=2.5,
            shared=2,
        ),
    ),
    "minimax": (9, Routing(top=4, score="sigmoid")),
    "gpt-oss": (5, Routing(top=2, score="softmax_of_chosen")),
    "qwen3-next": (6, Routing(top=3, shared=2, shared_gate=True)),
    "every one": (4, Routing(top=4)),
}


@pytest.mark.parametrize("corrected", [False, True], ids=["bare", "corrected"])
@pytest.mark.parametrize("family", ROUTINGS)
def test_choice(family: str, corrected: bool, device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    count, routing = ROUTINGS[family]
    logits = 3 * inputs.normal(17, count + routing.shared_gate)
    correction = inputs.normal(count) - 1.5 if corrected else None  # some scores become negative
    agree(check_choose_experts(inputs, routing, logits, correction), 1e-6)


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-next"])
def test_choice_from_slices(family: str, device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    count, routing = ROUTINGS[family]
    width = count + routing.shared_gate
    slices, bias = inputs.normal(3, 17, width), inputs.normal(width)
    agree(check_choose_experts(inputs, routing, slices, bias=bias), 1e-6)


@cases("count", [128], also=[64, 192, 256, 384, 512])
def test_choice_among_many(count: int, device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    agree(check_choose_experts(inputs, Routing(top=8), inputs.normal(3, count)), 1e-6)


def test_of_equal_scores_the_lower_index_wins(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    logits = inputs.these([[0.0] * 7, [1, 2, 2, 2, 0, 2, 1], [0.0, -0.0, 0, -0.0, 0, 0, 0]], torch.float32)
    agree(check_choose_experts(inputs, Routing(top=3), logits), 1e-6)
    correction = -torch.zeros(7, device=device)  # which leaves the zeros' signs
    agree(check_choose_experts(inputs, Routing(top=3, score="softmax_of_chosen"), logits, correction), 1e-6)
    grouped = Routing(top=2, groups=3, top_groups=1, group_score="top2", score="sigmoid")
    agree(check_choose_experts(inputs, grouped, inputs.these([[1, 2, 2, 1, 0, 5]], torch.float32)), 1e-6)


def test_what_is_not_a_number_is_no_index(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    logits = inputs.normal(3, 5)
    logits[0, 2] = logits[1] = torch.nan
    got = Chosen(inputs.poisoned(3, 2, dtype=torch.int32), inputs.poisoned(3, 2))
    choose_experts(logits[None], Routing(top=2, score="sigmoid"), got)
    assert bool(((got.experts >= 0) & (got.experts < 5)).all())
    assert 2 not in got.experts[0].tolist()
    assert not got.weights[[0, 2]].isnan().any()
    assert got.weights[1].isnan().all()
    assert all(len(set(row)) == 2 for row in got.experts.tolist())


def test_rows_that_are_not_numbers_choose_different_experts(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    got = Chosen(inputs.poisoned(1, 5, dtype=torch.int32), inputs.poisoned(1, 5))
    logits = torch.full((1, 6), torch.nan, device=device)
    choose_experts(logits[None], Routing(top=5, groups=2, top_groups=2, score="sigmoid"), got)
    assert len(set(got.experts[0].tolist()) & set(range(6))) == 5


@pytest.mark.parametrize("held", [range(3), range(6, 12)], ids=str)
@pytest.mark.parametrize("shared", [0, 2])
def test_chosen_experts_that_are_elsewhere_have_no_number(
    held: range, shared: int, device: torch.device
) -> None:
    """All that are chosen are counted, but those behind."""
    inputs = Inputs(device, torch.float32)
    routing = Routing(top=5, shared=shared, held=held)
    agree(check_choose_experts(inputs, routing, 3 * inputs.normal(17, 12)), 1e-6)


FEEDS = [  # tokens, slots, experts, their size, hidden size
    (1, 2, 3, 20, 33),
    (3, 3, 7, 20, 48),
    (2, 2, 4, 96, 72),
]


@cases(
    ("sizes", "is_bare"),
    [(FEEDS[0], True), (FEEDS[2], False)],
    also=[(FEEDS[1], True), *itertools.product([(1, 8, 16, 192, 256), (2, 4, 4, 72, 720)], [False, True])],
    ids=str,
)
def test_rows(sizes: tuple[int, ...], is_bare: bool, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_experts(inputs, count, size, hidden, bias=not is_bare, clamp=None if is_bare else 0.7)
    chosen = random_choice(inputs, tokens, slots, count)
    norm_weight = None if is_bare else inputs.normal(hidden) + 1
    agree(check_feed_rows(inputs, experts, chosen, norm_weight, 1e-3), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize(
    ("bias", "clamp"), [(False, None), (True, 0.7)], ids=["silu", "clamped, with biases"]
)
@cases("sizes", [(17, 3, 7, 20, 48)], also=[*FEEDS, (40, 2, 5, 96, 130), (65, 4, 32, 48, 64)], ids=str)
def test_lists(sizes: tuple[int, ...], bias: bool, clamp: float | None, *, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_experts(inputs, count, size, hidden, bias=bias, clamp=clamp)
    chosen = random_choice(inputs, tokens, slots, count)
    agree(check_feed_lists(inputs, experts, chosen), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("biased", [False, True], ids=["bare", "with biases"])
@cases("others", [5], also=[1, 40])
def test_nothing_is_added_for_experts_that_are_elsewhere(others: int, biased: bool, inputs: Inputs) -> None:
    """They are not read either: weights that no number names are not a number."""
    experts = random_experts(inputs, 4, 20, 48, bias=biased, others=others)
    few, many = (random_choice(inputs, tokens, 3, 4, others=others) for tokens in (3, 19))
    assert (few.experts < 0).any()
    many.experts[0] = -1
    for expert in set(range(4)) - set(few.experts.flatten().tolist()):
        for weight in (experts.gate_up, experts.down):
            assert isinstance(weight, torch.Tensor)
            weight[expert] = torch.nan
    for anew in (False, True):
        agree(check_feed_rows(inputs, experts, few, anew=anew), TOLERANCE[inputs.dtype])
    experts = random_experts(inputs, 4, 20, 48, bias=biased, others=others)
    for invariant in (False, True):
        agree(check_feed_lists(inputs, experts, many, invariant=invariant), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("invariant", [False, True], ids=["fast", "invariant"])
def test_all_tokens_may_choose_the_same_experts(invariant: bool, inputs: Inputs) -> None:
    experts = random_experts(inputs, 9, 24, 32)
    chosen = random_choice(inputs, 37, 2, 9, among=2)
    agree(check_feed_lists(inputs, experts, chosen, invariant=invariant), TOLERANCE[inputs.dtype])


@cases(("tokens", "slots", "experts"), [(17, 3, 7), (100, 2, 2)], also=[(64, 8, 128), (300, 2, 4)])
def test_lists_with_the_tiles_of_half_precision(
    tokens: int, slots: int, experts: int, device: torch.device
) -> None:
    half = Inputs(device, torch.float16)
    chosen = random_choice(half, tokens, slots, experts)
    agree(check_feed_lists(half, random_experts(half, experts, 24, 40), chosen), TOLERANCE[torch.float16])


def check_list_pairs(inputs: Inputs, chosen: Tensor, count: int, bm: int) -> Iterator[Comparison]:
    """The order of the pairs, and every tile: whose it is and what lies in it."""
    pairs = chosen.flatten().tolist()
    here = [pair for pair, expert in enumerate(pairs) if expert >= 0]
    order = sorted(here, key=lambda pair: (pairs[pair], pair))
    tiles, first = [], 0
    for expert in range(count):
        end = first + pairs.count(expert)
        tiles += [(expert, start, end) for start in range(first, end, bm)]
        first = end
    for pdl in inputs.launches:
        space = ExpertsWorkspace.create(len(pairs), count, 1, dtype=inputs.dtype, device=inputs.device)
        for each in (space.order, space.counts, space.tiles):
            each.fill_(POISON)
        inputs.settle()
        num_tiles = list_pairs(chosen, count, bm, space, pdl=pdl)
        got = space.tiles[: 3 * num_tiles].view(3, num_tiles)
        case = f"{len(pairs)} pairs of {count} experts in tiles of {bm}"
        unwritten = [POISON] * (len(pairs) - len(here))
        yield Comparison(f"order of {case}", space.order, inputs.these(order + unwritten), exact=True)
        yield Comparison(f"tiles of {case}", got[:, : len(tiles)].T, inputs.these(tiles), exact=True)
        unused = torch.full_like(got[0, len(tiles) :], -1)
        yield Comparison(f"unused tiles of {case}", got[0, len(tiles) :], unused, exact=True)


@cases(
    ("tokens", "slots", "count", "bm"),
    [(1, 2, 5, 16), (17, 3, 7, 16)],
    also=[(2, 8, 128, 16), (65, 8, 128, 16), (1000, 2, 8, 64), (400, 10, 512, 16), (1000, 8, 64, 128)],
)
def test_pairs_are_listed_by_expert(
    tokens: int, slots: int, count: int, bm: int, device: torch.device
) -> None:
    inputs = Inputs(device, torch.float32)
    agree(check_list_pairs(inputs, random_choice(inputs, tokens, slots, count).experts, count, bm), 0)


@cases(("tokens", "counts_all"), [(90, True), (1100, False)], also=[(650, True)])
def test_several_programs_list_pairs_together(tokens: int, counts_all: bool, device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    how = sorting(2 * tokens, 16)
    assert how.programs > 2
    assert bool(how.all) is counts_all
    crowded = inputs.integers(0, 16, tokens, 2).clamp_(max=11)
    agree(check_list_pairs(inputs, crowded, 16, 32), 0)
    agree(check_list_pairs(inputs, crowded - 4, 16, 32), 0)


@cases("size", [8], also=[1408], ids=["in one piece", "in several"])
def test_the_sum_is_in_the_order_of_the_slots(size: int, device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    experts = random_experts(inputs, 3, size, 8)
    assert (down_row_tile(size, 3, 4)[1] >= size) is (size == 8)
    # Signs alone, so that all products are exact: a fused multiplication and addition then rounds as two instructions do.
    down, gate_up = experts.down, experts.gate_up
    assert isinstance(down, torch.Tensor)
    assert isinstance(gate_up, torch.Tensor)
    down[:] = down[0].sign()
    gate_up[:] = gate_up[0]
    x = inputs.normal(1, 8)
    space = ExpertsWorkspace.create(3, 3, size, dtype=torch.float32, device=device)

    def fed(*weights: float) -> torch.Tensor:
        stream = torch.zeros(1, 8, device=device)
        chosen = Chosen(inputs.these([[0, 1, 2]]), inputs.these([weights], torch.float32))
        feed_rows(x, experts, chosen, stream, workspace=space)
        return stream

    huge = 2.0**40
    assert not fed(
        huge, 1.0, -huge
    ).any()  # the middle one is lost in the first, as it would not be in another order
    assert bool(fed(huge, -huge, 1.0).all())


def test_a_tokens_bits_do_not_depend_on_the_others(inputs: Inputs) -> None:
    experts = random_experts(inputs, 6, 20, 40)
    x, chosen = inputs.normal(70, 40), random_choice(inputs, 70, 3, 6)
    space = ExpertsWorkspace.create(210, 6, 20, dtype=inputs.dtype, device=inputs.device)

    def fed(tokens: slice) -> torch.Tensor:
        part = Chosen(*(each[tokens].contiguous() for each in chosen))
        out = inputs.poisoned(3, len(part.experts), 40)
        feed_lists(x[tokens], experts, part, out, workspace=space, invariant=True)
        return out

    together = fed(slice(0, 70))
    for part in (slice(0, 1), slice(69, 70), slice(3, 60)):
        assert torch.equal(fed(part), together[:, part])


def test_rows_mixed_with_one_that_is_not_a_number_stay_numbers(inputs: Inputs) -> None:
    experts, chosen = random_experts(inputs, 4, 20, 40), random_choice(inputs, 3, 2, 4)
    x = inputs.normal(3, 40)
    x[1] = torch.nan
    space = ExpertsWorkspace.create(6, 4, 20, dtype=inputs.dtype, device=inputs.device)
    out, stream = inputs.poisoned(2, 3, 40), x.clone()
    feed_lists(x, experts, chosen, out, workspace=space)
    assert out.isnan().all(dim=2).tolist() == [[False, True, False]] * 2
    assert not out[:, [0, 2]].isnan().any()
    feed_rows(x, experts, chosen, stream, workspace=space)
    assert stream.isnan().any(dim=1).tolist() == [False, True, False]


MODELS = {  # experts, slots, size and hidden size of published models
    "qwen3-30b": (128, 8, 768, 2048),
    "qwen3-235b": (128, 8, 1536, 4096),
    "qwen3-next": (513, 11, 512, 2048),
    "mixtral": (8, 2, 14336, 4096),
    "olmoe": (64, 8, 1024, 2048),
    "deepseek-v2-lite": (66, 8, 1408, 2048),
    "deepseek-v3": (257, 9, 2048, 7168),
    "gpt-oss": (32, 4, 2880, 2880),
}


@pytest.mark.parametrize("model", MODELS)
def test_row_tiles_keep_registers_free(model: str) -> None:
    _, slots, size, hidden = MODELS[model]
    tile, (warps, chunk) = gate_up_row_tile(hidden, 2), down_row_tile(size, slots, 2)
    assert 32 <= tile.rows * hidden * 2 / (32 * tile.warps) <= 256
    assert 32 <= slots * size * 2 / (32 * warps) <= 256
    for k, piece in ((hidden, tile.chunk), (size, chunk)):
        assert -(-k // piece) * piece < 1.5 * k


@pytest.mark.parametrize("room", [99 * 1024, 163 * 1024, 227 * 1024])
@pytest.mark.parametrize("model", MODELS)
def test_list_tiles_fit_into_shared_memory(model: str, room: int) -> None:
    count, slots, _, _ = MODELS[model]
    for tokens in (2, 16, 64, 65, 1000, 8192):
        tile = list_tile(tokens, slots, count, 2, room=room, invariant=False)
        assert (tile.bn + tile.bm) * tile.bk * 2 * tile.stages <= room
        assert tile.bm >= min(64, tokens * slots / count)


def test_tiles_of_qwen3() -> None:
    tiles = [list_tile(tokens, 8, 128, 2, room=227 * 1024, invariant=False) for tokens in (9, 64, 512, 8192)]
    assert [tile.bm for tile in tiles] == [16, 16, 64, 128]


def test_the_tile_of_invariant_lists_is_one_for_all_numbers_of_tokens() -> None:
    tiles = {
        list_tile(tokens, 8, 128, size, room=99 * 1024, invariant=True)
        for size in (2, 4)
        for tokens in (1, 9, 64, 512, 8192)
    }
    assert len(tiles) == 2


@pytest.mark.parametrize("pairs", [1, 7, 128, 129, 1000])
def test_tiles_are_enough_whatever_is_chosen(pairs: int) -> None:
    for experts in (1, 5, 128):
        for bm in (16, 64):
            alike = -(-pairs // bm)
            spread = [pairs // experts + (expert < pairs % experts) for expert in range(experts)]
            assert alike <= most_tiles(pairs, experts, bm)
            assert sum(-(-count // bm) for count in spread) <= most_tiles(pairs, experts, bm)
            one_each = [1] * min(pairs, experts)
            one_each[0] += pairs - len(one_each)
            assert sum(-(-count // bm) for count in one_each) <= most_tiles(pairs, experts, bm)
