"""Products with weights as checkpoints store them equal those with the weights that they stand for."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from nanoserve.kernels.experts import launch
from nanoserve.kernels.experts import tuning as experts_tuning
from nanoserve.kernels.experts.cases import (
    check_feed_lists,
    check_feed_rows,
    random_choice,
)
from nanoserve.kernels.experts.reference import Chosen
from nanoserve.kernels.experts.tuning import ListTile
from nanoserve.kernels.forms import FORMS, FP8, MXFP4, Form, Int4, Int4WithMinimum, Int8, StoredWeight
from nanoserve.kernels.forms.fp8 import BLOCK
from nanoserve.kernels.forms.layout import ROW
from nanoserve.kernels.forms.mxfp4 import VALUES, interleaved
from nanoserve.kernels.linear import tuning, tuning_table, tuning_tiles
from nanoserve.kernels.linear.cases import (
    LinearCase,
    check_fp8_linear,
    check_invariant_linear,
    check_packed_linear,
    check_row_linear,
    check_skinny_linear,
    check_split_linear,
)
from nanoserve.kernels.linear.launch import fp8_linear
from nanoserve.kernels.linear.tuning_tiles import (
    PACKED_TILES,
    fp8_rows,
    fp8_tile,
    packed_pays,
    packed_tile,
    packed_ways,
)
from nanoserve.kernels.pointwise.cases import check_quantize_rows
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_experts, random_product, random_stored
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
OTHER_FORMS = [FP8(BLOCK), Int4(32), Int4WithMinimum(32), Int4(64), Int4(ROW), Int8(16), Int8(32), Int8(ROW)]
IN_FORMS = cases(
    "form", FORMS.values(), also=OTHER_FORMS, ids=lambda form: f"{type(form).__name__}-{form.group}"
)
FEW = [((1, 2, 3, 160, 96), None), ((2, 2, 3, 32, 160), 0.7)]
MANY = [((1, 4, 8, 2880, 2880), 0.7), ((2, 8, 9, 512, 256), None), ((3, 3, 4, 32, 1184), 0.7)]


@cases(
    ("sizes", "clamp", "form"),
    [(*FEW[number % 2], form) for number, form in enumerate(FORMS.values())],
    also=[(*each, form) for each in (*FEW, *MANY) for form in (*FORMS.values(), *OTHER_FORMS)],
    ids=str,
)
def test_few_tokens(sizes: tuple[int, ...], form: Form, clamp: float | None, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_experts(inputs, count, size, hidden, form=form, clamp=clamp, bias=clamp is not None)
    chosen = random_choice(inputs, tokens, slots, count)
    norm_weight = inputs.normal(hidden) + 1 if tokens == 1 else None
    agree(check_feed_rows(inputs, experts, chosen, norm_weight, 1e-3), TOLERANCE[inputs.dtype])


@cases("form", [Int4()], also=[FP8(), MXFP4(), Int8(), *OTHER_FORMS], ids=str)
@cases("sizes", [(3, 4, 5, 32, 160)], also=[(1, 4, 8, 512, 256)], ids=str)
def test_nothing_is_added_for_experts_that_are_elsewhere(
    sizes: tuple[int, ...], form: Form, inputs: Inputs
) -> None:
    """What stands in their places is no number: the rows that enter down were never written."""
    tokens, slots, count, size, hidden = sizes
    experts = random_experts(inputs, count, size, hidden, form=form, bias=True, others=count)
    chosen = random_choice(inputs, tokens, slots, count, others=count)
    chosen.experts[0] = -1
    for anew in (False, True):
        agree(check_feed_rows(inputs, experts, chosen, anew=anew), TOLERANCE[inputs.dtype])
    agree(check_feed_lists(inputs, experts, chosen), TOLERANCE[inputs.dtype])


def test_steps_with_two_words_of_scales(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_tuning, "list_tile", lambda *_, **__: ListTile(16, 32, 256, 4, 2))
    experts = random_experts(inputs, 3, 160, 288, form=MXFP4())
    agree(check_feed_lists(inputs, experts, random_choice(inputs, 5, 2, 3)), TOLERANCE[inputs.dtype])


@IN_FORMS
@cases(
    ("sizes", "clamp"),
    [((17, 3, 7, 32, 160), 0.7)],
    also=[((40, 2, 5, 96, 288), None), ((9, 2, 4, 160, 1184), 0.7)],
    ids=str,
)
def test_lists_of_tokens(sizes: tuple[int, ...], form: Form, clamp: float | None, inputs: Inputs) -> None:
    tokens, slots, count, size, hidden = sizes
    experts = random_experts(inputs, count, size, hidden, form=form, clamp=clamp, bias=clamp is not None)
    agree(
        check_feed_lists(inputs, experts, random_choice(inputs, tokens, slots, count)),
        TOLERANCE[inputs.dtype],
    )


@IN_FORMS
@cases(("tokens", "slots", "experts"), [(17, 3, 7)], also=[(64, 8, 128), (300, 2, 4)])
def test_lists_with_the_tiles_of_half_precision(
    tokens: int, slots: int, experts: int, form: Form, device: torch.device
) -> None:
    half = Inputs(device, torch.float16)
    stored = random_experts(half, experts, 32, 160, form=form)
    chosen = random_choice(half, tokens, slots, experts)
    # The sums are of terms up to 40, of which some cancel: what rounding leaves of those is absolute.
    agree(check_feed_lists(half, stored, chosen), TOLERANCE[torch.float16], atol=1e-2)


@cases("form", [FP8(BLOCK)], also=[FP8()], ids=str)
@cases(
    ("tokens", "clamp", "invariant"),
    [(50, 0.7, False)],
    also=[(7, None, True), (190, None, False), (400, 0.7, False)],
)
def test_many_tokens_of_each_expert_are_rounded_to_8_bit_floats(
    tokens: int, clamp: float | None, form: Form, device: torch.device, *, invariant: bool
) -> None:
    """These are multiplied exactly; some tokens have experts that are elsewhere.

    Hopper's tensor cores cut each of 32 products, and their sum so far, to 13 bits below the largest before they add these up: sums of
    some 200 are off by 1.4e-4 to 2.1e-4 of their usual size, and 1 to 4 of 20,000 results by 1.0 to 1.3 thousandths. Float32 would leave 5e-8.
    """
    half, hidden = Inputs(device, torch.float16), 200
    experts = random_experts(half, 2, 40, hidden, form=form, clamp=clamp, bias=clamp is not None, others=1)
    chosen = random_choice(half, tokens, 2, 2, others=1)
    assert launch.lists_round(experts, half.normal(tokens, hidden), 2, invariant=invariant)
    agree(check_feed_lists(half, experts, chosen, invariant=invariant), 3e-3)


def test_a_check_that_is_only_compiled_looks_up_nothing_that_nobody_has_written(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rehearsed kernels run no lists of pairs, and an index out of bounds ends a GPU's process."""
    half, create = Inputs(device, torch.float16), launch.ExpertsWorkspace.create
    experts, chosen = random_experts(half, 2, 24, 40, form=FP8(BLOCK)), random_choice(half, 70, 2, 2)

    def unwritten(*sizes: int, **how: Any) -> launch.ExpertsWorkspace:
        space = create(*sizes, **how)
        return space._replace(order=torch.full_like(space.order, 1 << 30))

    monkeypatch.setattr(launch.ExpertsWorkspace, "create", unwritten)
    monkeypatch.setattr(launch, "feed_lists", lambda *_, **__: None)
    assert len(list(check_feed_lists(half, experts, chosen))) == 3


def test_a_rounded_tokens_bits_do_not_depend_on_the_others(device: torch.device) -> None:
    half = Inputs(device, torch.float16)
    experts, chosen = random_experts(half, 3, 24, 40, form=FP8(BLOCK)), random_choice(half, 70, 2, 3)
    x = half.normal(70, 40)
    space = launch.ExpertsWorkspace.create(140, 3, 24, dtype=half.dtype, device=device, entering=70 * 40)

    def fed(tokens: slice) -> torch.Tensor:
        part = Chosen(*(each[tokens].contiguous() for each in chosen))
        out = half.poisoned(2, len(part.experts), 40)
        launch.feed_lists(x[tokens], experts, part, out, workspace=space, invariant=True)
        return out

    together = fed(slice(0, 70))
    for part in (slice(0, 1), slice(3, 60)):
        assert torch.equal(fed(part), together[:, part])


@cases("form", [FP8(BLOCK)], also=[MXFP4()], ids=lambda form: form.name)
def test_edge_blocks_of_8_bit_floats_and_last_groups(form: Form, inputs: Inputs) -> None:
    """Hidden size and size leave a rest of a block, of a step and of what one thread loads."""
    hidden, size = (352, 224) if form.multiple > 1 else (203, 151)
    experts = random_experts(inputs, 3, size, hidden, form=form)
    agree(check_feed_rows(inputs, experts, random_choice(inputs, 1, 2, 3)), TOLERANCE[inputs.dtype])
    agree(check_feed_lists(inputs, experts, random_choice(inputs, 9, 2, 3)), TOLERANCE[inputs.dtype])


def test_every_number_of_mxfp4_under_every_usual_scale(device: torch.device) -> None:
    """All 256 bytes, in groups with exponents from the least that has no subnormal numbers up; powers of two round nothing."""
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(16, 16)
    exponents = torch.arange(2, 129, 8, dtype=torch.uint8, device=device).view(16, 1)
    stored = StoredWeight(MXFP4(), interleaved(numbers), exponents)
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=device)
    low, high = values[(numbers & 15).long()], values[(numbers >> 4).long()]
    wanted = torch.stack((low, high), 2).view(16, 32) * 2.0 ** (exponents.float() - 127)
    assert torch.equal(stored.float(), wanted)


def stored_product(inputs: Inputs, n: int, k: int, form: Form, **parts: Any) -> LinearCase:
    k = -(-k // form.multiple) * form.multiple
    return random_product(inputs, n, k, **parts)._replace(weight=random_stored(inputs, form, n, k))


@IN_FORMS
@cases(
    ("sizes", "gate"),
    [((40, 72), None), ((34, 203), "silu")],
    also=[((48, 300), None), ((64, 1024), "silu"), ((66, 1300), None)],
    ids=str,
)
def test_products_of_one_row(sizes: tuple[int, int], gate: Any, form: Form, inputs: Inputs) -> None:
    product = stored_product(inputs, *sizes, form, bias=gate is None, norm_weight=True, gate=gate)
    agree(check_row_linear(inputs, product), TOLERANCE[inputs.dtype])


def test_products_with_a_minimum_or_short_groups(inputs: Inputs) -> None:
    """As GGUF has them: q * scale - minimum, and groups of 16."""
    for form in (Int4WithMinimum(32), Int8(16)):
        product = stored_product(inputs, 34, 203, form)
        for check in (check_row_linear(inputs, product), check_skinny_linear(inputs, product, [5])):
            agree(check, TOLERANCE[inputs.dtype])


@cases(
    ("n", "k", "m", "gate"),
    [(40, 203, 5, None), (34, 1024, 3, "silu")],
    also=[(64, 4096, 3, None), (130, 300, 33, "silu"), (40, 72, 70, None)],
)
@IN_FORMS
def test_products_of_a_few_rows(n: int, k: int, m: int, gate: Any, *, form: Form, inputs: Inputs) -> None:
    product = stored_product(inputs, n, k, form, gate=gate)
    agree(check_skinny_linear(inputs, product, [m]), TOLERANCE[inputs.dtype])


@cases(
    ("n", "k", "m", "half"),
    [(40, 1300, 5, False)],
    also=[(40, 1300, 5, True), (40, 512, 20, False), (64, 2048, 33, True)],
)
@IN_FORMS
def test_partial_sums(n: int, k: int, m: int, half: bool, *, form: Form, device: torch.device) -> None:
    inputs = Inputs(device, torch.float16 if half else torch.float32)
    agree(check_split_linear(inputs, stored_product(inputs, n, k, form), [m]), 1e-3 if half else 2e-5)


@IN_FORMS
@pytest.mark.parametrize("sizes", [(40, 72), (34, 203)])
def test_many_rows_multiply_with_the_very_weight_that_is_meant(
    sizes: tuple[int, int], form: Form, inputs: Inputs
) -> None:
    agree(check_invariant_linear(inputs, stored_product(inputs, *sizes, form)), TOLERANCE[inputs.dtype])


@cases("form", [FP8(), FP8(BLOCK)], also=[FP8(BLOCK, BLOCK)], ids=str)
@cases(
    ("sizes", "rows"),
    [((40, 203), 5), ((70, 4232), 33)],
    also=[((130, 256), 70), ((66, 300), 257), ((8448, 128), 257)],
    ids=str,
)
def test_products_of_8_bit_floats(sizes: tuple[int, int], rows: int, form: FP8, device: torch.device) -> None:
    """The numbers are multiplied exactly; Hopper's tensor cores cut sums of 32 products as in experts, which is absolute where terms cancel."""
    inputs = Inputs(device, torch.float16)
    stored = random_stored(inputs, FP8(form.group), *sizes)
    if form.rows > 1:  # as of blocks: every row has the scales of the first of 128
        stored.scales.copy_(stored.scales[::BLOCK].repeat_interleave(BLOCK, 0)[: len(stored)])
    weight = StoredWeight(form, stored.numbers, stored.scales)
    for parts in ({"bias": True}, {"added": True}):
        product = random_product(inputs, *sizes, **parts)._replace(weight=weight)
        agree(check_fp8_linear(inputs, product, [rows]), TOLERANCE[torch.float16], atol=1e-2)


@cases("form", [FP8()], also=[FP8(BLOCK)], ids=str)
def test_a_row_of_8_bit_floats_has_the_same_bits_in_any_batch(form: FP8, device: torch.device) -> None:
    inputs = Inputs(device, torch.float16)
    weight, numbers = random_stored(inputs, form, 40, 200), inputs.normal(300, 200).to(form.dtype)
    scales = inputs.normal(300, dtype=torch.float32).exp()
    batch, alone = inputs.poisoned(300, 40), inputs.poisoned(300, 40)
    fp8_linear(numbers, scales, weight, batch, invariant=True)
    for rows in (slice(0, 1), slice(63, 65), slice(7, 299)):
        fp8_linear(numbers[rows], scales[rows], weight, alone[rows], invariant=True)
        assert torch.equal(alone[rows], batch[rows])


def test_rows_in_8_bit_floats(inputs: Inputs) -> None:
    agree(check_quantize_rows(inputs, 3, 200), TOLERANCE[inputs.dtype])
    agree(check_quantize_rows(inputs, 2, 72, "silu"), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("n", [66, 4096, 28672])
def test_every_tile_of_8_bit_floats_is_named_by_the_fewest_rows_that_have_it(n: int, blocks: bool) -> None:
    ways = fp8_rows(n, blocks=blocks)
    assert {fp8_tile(rows, n, blocks=blocks) for rows in range(1, 40_000, 63)} <= {
        fp8_tile(rows, n, blocks=blocks) for rows in ways
    }
    for rows in set(ways) - {1}:
        assert fp8_tile(rows, n, blocks=blocks) != fp8_tile(rows - 1, n, blocks=blocks)


@cases(
    "form",
    [Int4(), Int8()],
    also=[Int4(32), Int4(ROW), Int4WithMinimum(32), Int8(16), Int8(ROW), MXFP4()],
    ids=str,
)
@cases(("sizes", "rows"), [((70, 192), 5)], also=[((130, 224), 65), ((8448, 64), 257)], ids=str)
def test_many_rows_with_packed_numbers(
    sizes: tuple[int, int], rows: int, form: Form, device: torch.device
) -> None:
    inputs, tolerance = Inputs(device, torch.float16), 2 * TOLERANCE[torch.float16]  # of millions of results
    for parts in ({"bias": True}, {"added": True}):
        product = stored_product(inputs, *sizes, form, **parts)
        agree(check_packed_linear(inputs, product, [rows]), tolerance)


@cases("form", [Int4(), Int8(32)], also=[Int4(32), Int8(ROW), MXFP4()], ids=str)
@pytest.mark.parametrize("k", [1056, 1536])
def test_packed_numbers_in_slices(
    k: int, form: Form, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even ones, and ones that reach beyond what there is; the last to arrive adds, and leaves the counters as they were."""
    monkeypatch.setattr(tuning_tiles, "packed_pays", lambda *_: True)
    monkeypatch.setattr(tuning_table, "packed_tile", lambda *_: PACKED_TILES[-1])
    monkeypatch.setattr(tuning_tiles, "packed_scratch", lambda *_: (1 << 17, 8))
    product = stored_product(inputs := Inputs(device, torch.float16), 70, k, form, bias=True, added=True)
    agree(check_packed_linear(inputs, product, [65, 3]), TOLERANCE[torch.float16])


@pytest.mark.parametrize(("n", "k"), [(66, 256), (4096, 14336), (28672, 4096)])
def test_every_way_of_packed_numbers_is_named_by_rows_that_have_it(n: int, k: int) -> None:
    def way(rows: int) -> object:
        return packed_tile(-(-rows // 64) * 64, n, k) if packed_pays(rows, n, k) else None

    ways = packed_ways(n, k)
    assert len(ways) == len(set(map(way, ways)))
    assert set(map(way, ways)) == set(map(way, range(1, 1200)))


def test_packed_numbers_are_widened_before_where_their_programs_take_turns() -> None:
    assert packed_pays(256, 6144, 4096)
    assert not packed_pays(320, 6144, 4096)
    assert packed_pays(512, 28672, 4096)
    assert packed_pays(1024, 28672, 4096)
    assert not packed_pays(1025, 28672, 4096)


@cases("form", [Int4(), FP8(BLOCK)], also=[Int4(ROW), FP8()], ids=str)
@cases(("n", "k", "gate"), [(34, 2560, None)], also=[(40, 4352, "silu"), (66, 7168, None)], ids=str)
def test_words_of_one_row_go_straight_into_registers(
    n: int, k: int, gate: Any, *, form: Form, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several steps, the last of which may be shorter, and with rows that are not there."""
    monkeypatch.setattr(tuning, "LEAST_STRAIGHT", 1)
    tuning.row_tile.cache_clear()
    half = Inputs(device, torch.float16)
    assert tuning.row_tile(n, k, 4, gate=gate is not None, form=form).straight
    for parts in ({"gate": gate, "bias": True, "norm_weight": True}, {"gate": gate, "added": not gate}):
        agree(check_row_linear(half, stored_product(half, n, k, form, **parts)), TOLERANCE[torch.float16])
    tuning.row_tile.cache_clear()


def test_straight_tiles_of_the_measured_shapes() -> None:
    """Long slices of up to eight rows are multiplied by warps that wait for no other one; a row's chunks are one step where they can be."""
    of = functools.partial(tuning.skinny_tile, itemsize=2, splits=None, room=1 << 18)
    assert of(8, 28672, 4096, gate=True, form=FP8())[:4] == (8, 64, 256, 1)
    assert of(16, 28672, 4096, gate=True, form=FP8())[:4] == (16, 64, 256, 2)
    assert of(8, 14336, 4096, gate=True, form=FP8())[:4] == (8, 64, 256, 2)
    assert of(8, 4096, 14336, gate=False, form=FP8())[:4] == (8, 64, 256, 8)
    assert of(8, 6144, 4096, gate=False, form=FP8())[:4] == (16, 64, 256, 8)
    assert of(8, 16384, 2048, gate=True, form=FP8())[:4] == (8, 64, 256, 2)
    assert of(8, 28672, 4096, gate=True, form=Int4())[:4] == (16, 64, 512, 8)
    assert of(8, 6144, 4096, gate=False, form=Int4())[:4] == (8, 32, 512, 8)
    assert of(8, 4096, 14336, gate=False, form=Int4())[:4] == (8, 64, 256, 8)
    assert [of(rows, 28672, 4096, gate=True, form=Int4()).ahead for rows in (32, 64)] == [0, 1]
    shapes = (4096, 4096), (6144, 4096), (2048, 8192), (3072, 2048)
    packed = [tuning.row_tile(*each, 4, gate=False, form=Int4()).straight for each in shapes]
    assert packed == [True, True, True, False]
    assert not any(tuning.row_tile(*each, 8, gate=False, form=FP8()).straight for each in shapes)
    warps = {k: tuning.straight_warps(k, Int4())[0] for k in (2048, 4096, 5120, 14336, 17408)}
    assert warps == {2048: 2, 4096: 4, 5120: 8, 14336: 8, 17408: 8}
    assert [tuning.straight_warps(k, FP8())[:1] for k in (4096, 5120, 8192, 2112)] == [[8], [8], [8], []]


@cases("form", [Int4(), FP8(BLOCK)], also=[Int4(ROW), FP8()], ids=str)
@cases(("n", "k", "gate"), [(130, 1536, None)], also=[(72, 768, "silu"), (66, 4096, None), (40, 256, "silu")])
def test_words_that_go_straight_into_registers(
    n: int, k: int, gate: Any, *, form: Form, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several steps to a slice, and tiles and rows of x that reach beyond what there is."""
    monkeypatch.setattr(tuning, "BUSY", 0)  # any number of programs will do
    for each in (tuning.skinny_tile, tuning.split_count):
        each.cache_clear()
    half = Inputs(device, torch.float16)
    product = stored_product(half, n, k, form, gate=gate, bias=True)
    what: dict[str, Any] = {"room": 1 << 20, "form": form}
    tile = tuning.skinny_tile(5, n, k, 2, gate=gate is not None, splits=None, **what)
    assert tile.straight
    agree(check_skinny_linear(half, product, [5, 16]), TOLERANCE[torch.float16])
    if gate is None:
        agree(check_split_linear(half, product._replace(bias=None), [3]), 1e-3)
    for each in (tuning.skinny_tile, tuning.split_count):
        each.cache_clear()
