"""What adapters add to products equals its formula, whoever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoserve.kernels.device.launch import supports_pdl
from nanoserve.kernels.forms import FORMS
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear import cases as linear_cases
from nanoserve.kernels.linear import triton as linear_kernels
from nanoserve.kernels.linear.cases import LinearCase, check_adapted, multiply_adapted
from nanoserve.kernels.linear.launch import LinearWorkspace, skinny_linear, split_linear
from nanoserve.kernels.linear.launch import slice_count as slice_count_of
from nanoserve.kernels.linear.low_rank import triton as low_rank_kernels
from nanoserve.kernels.linear.low_rank.cases import (
    Runs,
    add_low_rank,
    check_add_low_rank,
    random_delta,
)
from nanoserve.kernels.linear.low_rank.launch import Adapters, Delta, Product, shrink
from nanoserve.kernels.linear.low_rank.reference import low_rank_delta
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
from nanoserve.kernels.pointwise.launch import add_rms_norm_into
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_product, random_stored
from tests.interpreter.matrix import cases

QKV = ((0, 70, 0), (70, 90, 1), (90, 110, 2))
CROWD = [token % 4 for token in range(70)]
INTERPRETED = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU"
)
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


@cases(
    ("rows", "ranks", "parts"),
    [
        (6, (16,) * 5, {"gate": "silu"}),
        (20, (16, 32, 64, 16, 16, 32, 16), {"added": True}),
    ],
    also=[
        (64, (16,) * 33, {"bias": True}),
        (17, (128,) * 9, {"gate": "silu"}),
        (40, (16, 48, 128, 32, 16, 64, 16, 16, 112), {"added": True}),
    ],
)
def test_several_adapters_are_multiplied_at_once(
    rows: int, ranks: tuple[int, ...], parts: dict[str, Any], device: torch.device
) -> None:
    halves = Inputs(device, torch.float16)
    runs: Runs = ((0, 34, 0), (34, 68, 1)) if "gate" in parts else ((0, 33, 0), (33, 40, 1), (40, 68, 2))
    product = random_product(halves, 68, 272, **parts)
    agree(check_adapted(halves, product, runs, [rows], ranks=ranks), TOLERANCES[torch.float16])


@cases("ranks", [(16,) * 6], also=[(32, 64, 16, 128, 16)])
def test_behind_a_product_they_are_too(ranks: tuple[int, ...], device: torch.device) -> None:
    tokens = [token % (len(ranks) + 1) for token in range(70)]
    agree(check_add_low_rank(Inputs(device, torch.float16), QKV, 80, tokens, ranks=ranks), 4e-3)


@cases("gate", ["silu"], also=["gelu", "gelu_tanh"])
def test_behind_gate_and_up_projections_they_are_gated(gate: Activation, inputs: Inputs) -> None:
    runs: Runs = ((0, 70, 0), (70, 140, 1))
    found = check_add_low_rank(inputs, runs, 48, CROWD, gate=gate, ranks=(16, 32, 16))
    agree(found, TOLERANCES[inputs.dtype])


@INTERPRETED
@pytest.mark.parametrize("parts", [{"gate": "silu"}, {"added": True}])
def test_a_product_that_begins_beside_the_kernel_that_shrinks_reads_nothing_early(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, inputs: Inputs
) -> None:
    runs: Runs = ((0, 34, 0), (34, 68, 1))
    product = random_product(inputs, 68, 600, **parts)
    x = inputs.normal(20, 600)
    delta, _ = random_delta(inputs, runs, x, [token % 4 for token in range(20)])
    space = LinearWorkspace.create([product.weight], max_m=20, dtype=inputs.dtype, device=inputs.device)
    out = inputs.poisoned(20, 34 if "gate" in parts else 68)
    how: dict[str, Any] = {"product": product, "delta": delta, "space": space}
    multiply_adapted(x, out, **how)
    wanted, there, deltas = out.clone(), x.clone(), delta.deltas.clone()
    seen: list[str] = []

    def x_is_there(ready: torch.Tensor | None, _: bool) -> None:
        assert ready is not None
        seen.append("x")
        x.copy_(there)

    def all_is_there(_: bool) -> None:
        assert seen[-1] == "x"
        if len(seen) == 1:
            assert out.isnan().all(), "the first program has stored"
        seen.append("all")
        delta.deltas.copy_(deltas)

    def nothing_is_there(*_: Any, **__: Any) -> None:
        for each in (x, delta.shrunk, out):
            each.fill_(torch.nan)

    monkeypatch.setattr(linear_cases, "shrink", nothing_is_there)
    monkeypatch.setattr(low_rank_kernels, "wait_for_x", x_is_there)
    monkeypatch.setattr(linear_kernels, "wait_for_last", all_is_there)
    multiply_adapted(x, out, **how)
    assert torch.equal(out, wanted)
    assert seen[:2] == ["x", "all"]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 31, 64])
@pytest.mark.parametrize(
    ("columns", "parts"),
    [(2832, {"added": True}), (2896, {"bias": True}), (5664, {"gate": "silu", "bias": True})],
)
def test_products_whose_weight_the_copy_engine_fetches_do(
    columns: int, parts: dict[str, Any], rows: int, inputs: Inputs
) -> None:
    product = random_product(inputs, columns, 640, **parts)
    runs: Runs = ((0, columns // 2, 0), (columns // 2, columns, 1))
    agree(check_adapted(inputs, product, runs, [rows], ranks=(16, 64, 32, 128)), TOLERANCES[inputs.dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [2, 8, 40, 64])
@pytest.mark.parametrize("columns", [256, 3072])
def test_products_that_begin_early_have_the_bits_of_those_that_wait(
    columns: int, rows: int, inputs: Inputs
) -> None:
    width, slots_of_tokens = 512, [token % 10 for token in range(rows)]
    x, streams = inputs.poisoned(rows, width), inputs.normal(6, rows, width)
    norm, outs = inputs.normal(width) + 1, []
    launches = list[tuple[Delta, LinearCase, torch.Tensor]]()
    for number in range(len(streams)):
        n = columns * (1 + number % 3)
        product = random_product(inputs, n, width, added=number % 2 > 0)
        delta, _ = random_delta(inputs, ((0, n, 0),), x, slots_of_tokens, ranks=(16,) * 9)
        if launches:
            delta = delta._replace(shrunk=launches[0][0].shrunk, ready=launches[0][0].ready)
        slices = slice_count_of(rows, product.weight) if product.added else 1
        outs.append(inputs.poisoned(slices, rows, n, dtype=torch.float32))
        launches.append((delta, product, outs[-1]))
    weights = [product.weight for _, product, _ in launches]
    space = LinearWorkspace.create(weights, max_m=rows, dtype=inputs.dtype, device=inputs.device)

    def step(*, pdl: bool) -> None:
        for stream, (delta, product, out) in zip(streams, launches, strict=True):
            add_rms_norm_into(stream, norm, x, eps=1e-5, pdl=pdl)
            how: dict[str, Any] = {"delta": delta, "pdl": pdl}
            shrink(x, **how)
            if product.added:
                split_linear(x, product.weight, out, **how)
            else:
                skinny_linear(x, product.weight, out[0], workspace=space, **how)

    step(pdl=False)
    wanted, pdl = [out.clone() for out in outs], supports_pdl(inputs.device)
    step(pdl=pdl)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(pdl=pdl)
    for _ in range(300):
        for out in outs:
            out.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(out, each) for out, each in zip(outs, wanted, strict=True))


@INTERPRETED
def test_the_kernel_that_shrinks_says_that_x_is_there_once_it_is(
    monkeypatch: pytest.MonkeyPatch, inputs: Inputs
) -> None:
    x = inputs.normal(3, 48)
    delta, _ = random_delta(inputs, ((0, 64, 0),), x, [1, 0, 1])
    seen = []
    monkeypatch.setattr(low_rank_kernels, "wait_for_last", lambda _: seen.append(int(delta.ready)))
    for _ in range(2):
        shrink(x, delta)
        assert seen[0] == 0
        assert int(delta.ready) == 1
        seen.clear()


def test_a_token_has_the_bits_it_has_alone(inputs: Inputs) -> None:
    width, rank = 144, 32
    numbers = inputs.normal(3, rank * (2 * width + 96))
    product = Product(0, 2 * width, (80, 96), inputs.these([0] * 80 + [1] * 16))
    x, slots_of_tokens = inputs.normal(21, width), [1, 2, 0, 3] * 5 + [1]

    def deltas(tokens: list[int]) -> torch.Tensor:
        made = describe(((slots_of_tokens[token], 1) for token in tokens), {1: 32, 2: 16, 3: 32})
        lists = (inputs.these(each + [0] * ITEM * PADDING).view(-1, ITEM) for each in made[:2])
        adapters = Adapters(numbers, *lists, *(inputs.these(each) for each in made[2:]))
        out = torch.zeros(len(tokens), 96, dtype=inputs.dtype, device=inputs.device)
        shrunk = torch.empty(1, len(tokens), 2 * rank, dtype=torch.float32, device=inputs.device)
        more = inputs.these([0]), inputs.poisoned(0, dtype=torch.float32)
        add_low_rank(x[tokens], out, Delta(adapters, product, shrunk, *more, invariant=True))
        return out

    together = deltas(list(range(21)))
    for token in (0, 1, 3, 9, 19):
        assert torch.equal(deltas([token])[0], together[token])
    assert not together[2].any()


@INTERPRETED
def test_slots_lie_as_far_apart_as_memory_allows(tmp_path: Path, device: torch.device) -> None:
    halves, width, rank, far = Inputs(device, torch.float16), 48, 16, (1 << 35) + 16
    numbers = torch.from_file(str(tmp_path / "sparse"), shared=True, size=2 * far, dtype=halves.dtype).view(
        2, far
    )
    x, a, b = halves.normal(2, width), halves.normal(1, rank, width), halves.normal(32, rank)
    numbers[1, : rank * (width + 32)] = torch.cat([a.flatten(), b.flatten()])
    made = describe([(2, 2)], {2: rank})
    lists = (halves.these(each + [0] * ITEM * PADDING).view(-1, ITEM) for each in made[:2])
    adapters = Adapters(numbers, *lists, *(halves.these(each) for each in made[2:]))
    out, shrunk = torch.zeros(2, 32), torch.empty(1, 2, rank)
    product = Product(0, width, (32,), None)
    add_low_rank(x, out, Delta(adapters, product, shrunk, halves.these([0]), halves.poisoned(0)))
    torch.testing.assert_close(out, low_rank_delta(x, a, b, [(0, 32, 0)]), rtol=4e-3, atol=4e-2)


def test_units_are_of_one_slot_and_name_every_token_that_has_one() -> None:
    units, items, order, slots = describe([(2, 17), (0, 2), (1, 1), (2, 1)], {1: 16, 2: 32})
    assert units == [2, 0, 0, 0, 0, 2, 32, 0, 0, 18, 1, 16, 0, 18, 1]
    assert items[:15] == [5, 6, 0, 0, 0, 2, 32, 0, 0, 16, 2, 32, 0, 16, 2]
    assert items[-5:] == [0, 0, 0, 19, 2]
    assert order == [*range(17), 20, 19, 17, 18]
    assert slots == [*[2] * 17, 0, 0, 1, 2]


@pytest.mark.parametrize("tokens", [1, 5, 64, 100])
def test_units_and_items_fit_into_their_room(tokens: int) -> None:
    for slots in (1, 3, 32):
        spread = describe(((1 + token % slots, 1) for token in range(tokens)), dict.fromkeys(range(33), 64))
        assert spread.units[0] <= most_units(tokens, slots) - PADDING
        assert spread.items[0] <= spread.items[1] <= most_items(tokens, slots, 64) - PADDING


def test_slices_fit_into_their_room() -> None:
    for tokens in (1, 16, 64, 256, 400, 512, 1000, 3000):
        counts = [slice_count(tokens, width, invariant=False) for width in (48, 4096, 14336)]
        assert max(counts) * tokens <= most_partials(tokens) <= most_partials(4096)


def test_every_way_to_cut_has_a_number_of_tokens_that_is_rehearsed() -> None:
    widths = (4096, 14336)
    assert shrink_ways(widths, 2048, invariant=False) == [1, 16, 64, 146, 256, 512, 2048]
    assert shrink_ways(widths, 100, invariant=False) == [1, 16, 64, 100]
    assert shrink_ways(widths, 2048, invariant=True) == [2048]
