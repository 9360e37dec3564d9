"""Linear layers for few rows equal the formula in float32, on odd shapes, and leave no trace."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from nanoserve.kernels.forms import FP8, StoredWeight
from nanoserve.kernels.forms.layout import ROW
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear import launch, tuning_tiles
from nanoserve.kernels.linear.cases import (
    LinearCase,
    check_invariant_linear,
    check_row_linear,
    check_skinny_linear,
    check_split_linear,
)
from nanoserve.kernels.linear.launch import (
    LinearWorkspace,
    invariant_linear,
    row_linear,
    skinny_linear,
    split_linear,
)
from nanoserve.kernels.linear.low_rank.tuning import BESIDE
from nanoserve.kernels.linear.tuning import copied_tile, row_tile, skinny_tile, split_count
from nanoserve.kernels.linear.tuning_tiles import INVARIANT_TILES, InvariantTile
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_product
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
GATES = pytest.mark.parametrize("gate", [None, "silu", "gelu_tanh"])
ROW_SHAPES = [(48, 32), (10, 33), (70, 288), (6, 1536), (4, 2048), (66, 5120)]


@GATES
@pytest.mark.parametrize("fused", [False, True], ids=["bare", "fused"])
@cases(("n", "k"), [(34, 96), (3, 3072)], also=ROW_SHAPES, ids=str)
def test_row(n: int, k: int, fused: bool, gate: Activation | None, *, inputs: Inputs) -> None:
    n -= n % 2 if gate else 0
    product = random_product(inputs, n, k, bias=fused, norm_weight=fused, added=fused, eps=1e-3, gate=gate)
    agree(check_row_linear(inputs, product), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("part", ["bias", "norm_weight", "added"])
def test_each_part_of_a_row_stands_alone(part: str, inputs: Inputs) -> None:
    product = random_product(inputs, 20, 64, eps=0.5, **{part: True})
    agree(check_row_linear(inputs, product), TOLERANCE[inputs.dtype])


def test_a_row_may_be_added_in_place(inputs: Inputs) -> None:
    product, x, residual = random_product(inputs, 37, 64), inputs.normal(1, 64), inputs.normal(1, 37)
    expected = product.formula(x) + residual.float()
    row_linear(x, product.weight, residual, residual=residual)
    tolerance = TOLERANCE[inputs.dtype]
    torch.testing.assert_close(residual.float(), expected, rtol=tolerance, atol=tolerance)


def test_a_row_of_logits_may_be_float32(inputs: Inputs) -> None:
    product, x = random_product(inputs, 40, 64), inputs.normal(1, 64)
    out = inputs.poisoned(1, 40, dtype=torch.float32)
    row_linear(x, product.weight, out)
    torch.testing.assert_close(out, product.formula(x), rtol=1e-4, atol=1e-4)


@GATES
def test_a_row_writes_only_its_output(gate: Activation | None, inputs: Inputs) -> None:
    arena = inputs.poisoned(1, 16)
    weight = inputs.normal(10 if gate else 5, 48)
    row_linear(inputs.normal(1, 48), weight, arena[:, 4:9], gate=gate)
    assert arena.isnan().nonzero()[:, 1].tolist() == [0, 1, 2, 3, *range(9, 16)]


SKINNY_SHAPES = [
    (2, 48, 32),
    (3, 70, 96),
    (16, 64, 33),
    (4, 34, 1056),
    (33, 66, 64),
    (128, 34, 64),
]


def workspace_for(rows: int, product: LinearCase) -> LinearWorkspace:
    weight = product.weight
    assert isinstance(weight, torch.Tensor)
    space = LinearWorkspace.create([weight], max_m=rows, dtype=weight.dtype, device=weight.device)
    space.partials.fill_(torch.nan)
    return space


@GATES
@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@cases(("m", "n", "k"), [(17, 34, 160), (9, 40, 1024)], also=SKINNY_SHAPES, ids=str)
def test_skinny(m: int, n: int, k: int, biased: bool, gate: Activation | None, *, inputs: Inputs) -> None:
    product = random_product(inputs, n, k, bias=biased, gate=gate)
    agree(check_skinny_linear(inputs, product, [m]), TOLERANCE[inputs.dtype])


def test_some_of_these_skinny_products_are_split() -> None:
    for m, n, itemsize in ((9, 40, 4), (40, 66, 2)):
        assert skinny_tile(m, n, 1024, itemsize, gate=False, splits=None, room=99 * 1024).splits > 1


@GATES
@cases(("m", "n", "k"), [(9, 40, 1024), (40, 66, 1024)], also=[(3, 70, 96), (20, 130, 700)], ids=str)
def test_skinny_with_the_tiles_of_half_precision(
    m: int, n: int, k: int, *, gate: Activation | None, device: torch.device
) -> None:
    half = Inputs(device, torch.float16)
    product = random_product(half, n, k, bias=True, gate=gate)
    agree(check_skinny_linear(half, product, [m]), TOLERANCE[torch.float16])


@cases(("m", "n", "k"), [(5, 34, 1100)], also=[(2, 40, 2048), (40, 66, 1024)], ids=str)
def test_split_with_the_tiles_of_half_precision(m: int, n: int, k: int, device: torch.device) -> None:
    half = Inputs(device, torch.float16)
    agree(check_split_linear(half, random_product(half, n, k), [m]), 1e-3)


def test_a_skinny_product_writes_only_its_output(inputs: Inputs) -> None:
    product, arena = random_product(inputs, 36, 512), inputs.poisoned(8, 36)
    skinny_linear(inputs.normal(3, 512), product.weight, arena[2:5], workspace=workspace_for(3, product))
    assert arena.isnan().any(dim=1).tolist() == [True, True, False, False, False, True, True, True]


def test_rows_beyond_m_are_not_read(inputs: Inputs) -> None:
    product, x, out = random_product(inputs, 36, 64), inputs.normal(16, 64), inputs.poisoned(3, 36)
    expected = product.formula(x[:3])
    x[3:] = torch.nan
    skinny_linear(x[:3], product.weight, out, workspace=workspace_for(16, product))
    tolerance = TOLERANCE[inputs.dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


def test_each_tile_has_its_own_part_of_the_workspace(inputs: Inputs) -> None:
    product = random_product(inputs, 200, 1024)
    space = workspace_for(9, product)
    skinny_linear(inputs.normal(9, 1024), product.weight, inputs.poisoned(9, 200), workspace=space)
    assert len(space.counters) > 1
    assert not space.partials.isnan().any()


def test_too_small_a_workspace_is_refused(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    product = random_product(inputs, 64, 1024)
    enough = workspace_for(4, product)
    assert len(enough.counters) > 1
    for space in (
        enough._replace(partials=enough.partials[:-1]),
        enough._replace(counters=enough.counters[:-1]),
        LinearWorkspace.create([], max_m=4, dtype=torch.float32, device=device),
    ):
        with pytest.raises(ValueError, match="64 x 1024"):
            skinny_linear(inputs.normal(4, 1024), product.weight, inputs.poisoned(4, 64), workspace=space)


def test_more_rows_than_a_tile_are_refused(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    with pytest.raises(ValueError, match="129 rows"):
        agree(check_skinny_linear(inputs, random_product(inputs, 4, 8), [129]), 0)


@cases(
    ("m", "n", "k"),
    [(5, 34, 1056)],
    also=[(2, 48, 32), (16, 40, 1024), (5, 34, 1100), (70, 33, 512)],
    ids=str,
)
def test_split(m: int, n: int, k: int, inputs: Inputs) -> None:
    agree(check_split_linear(inputs, random_product(inputs, n, k), [m]), 1e-4)


def test_partial_sums_are_those_of_slices(inputs: Inputs) -> None:
    product, partials = random_product(inputs, 40, 1024), inputs.poisoned(4, 5, 40, dtype=torch.float32)
    assert split_count(5, 40, 1024) == len(partials)
    split_linear(inputs.normal(5, 1024), product.weight, partials)
    assert bool((partials.abs().amax(dim=(1, 2)) > 0).all())


def test_a_wrong_number_of_partial_sums_is_refused(device: torch.device) -> None:
    inputs = Inputs(device, torch.float32)
    with pytest.raises(ValueError, match="1 slices, not 3"):
        split_linear(inputs.normal(2, 32), inputs.normal(48, 32), torch.empty(3, 2, 48, device=device))


@pytest.mark.parametrize("added", [False, True], ids=["bare", "added"])
@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@cases(("t", "n", "k"), [(65, 70, 33)], also=[(1, 48, 32), (130, 130, 64), (7, 33, 100)], ids=str)
def test_invariant(t: int, n: int, k: int, biased: bool, added: bool, *, inputs: Inputs) -> None:
    product = random_product(inputs, n, k, bias=biased, added=added)
    agree(check_invariant_linear(inputs, product, t), TOLERANCE[inputs.dtype])


@pytest.mark.parametrize("tile", [each for each, _ in INVARIANT_TILES], ids=str)
def test_each_tile_of_an_invariant_product(
    tile: InvariantTile, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_tiles, "invariant_tile", lambda *_, **__: tile)
    monkeypatch.setattr(launch, "has_wgmma", lambda _: True)
    half = Inputs(device, torch.float16)
    product = random_product(half, 72, 168, bias=True, added=True)
    agree(check_invariant_linear(half, product, 67), TOLERANCE[torch.float16])


@pytest.mark.parametrize("rows", [1, 16, 20, 70])
def test_what_lies_behind_a_products_rows_changes_none_of_their_bits(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "has_wgmma", lambda _: True)
    half = Inputs(device, torch.float16)
    weight, x = random_product(half, 72, 168).weight, half.normal(rows + 1, 168)
    assert isinstance(weight, torch.Tensor)
    memory, made, alone = half.poisoned(rows + 40, 168), half.poisoned(rows, 72), half.poisoned(rows, 72)
    memory[1 : rows + 1] = x[1:]
    invariant_linear(memory[1 : rows + 1], weight, made)
    invariant_linear(x[1:], weight, alone)
    assert torch.equal(made, alone)
    assert not alone.isnan().any()


@pytest.mark.gpu
def test_every_tile_of_an_invariant_product_has_the_same_bits(device: torch.device) -> None:
    half = Inputs(device, torch.bfloat16)
    product = random_product(half, 4096, 1024, bias=True)
    assert len(launch.invariant_ways(product.weight, half.normal(1, 1024), 4096)) == len(INVARIANT_TILES)
    agree(check_invariant_linear(half, product, 67), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize(("k", "ways"), [(80, 1), (128, 1), (136, 5)])
def test_an_invariant_product_of_one_step_has_one_tile(
    k: int, ways: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "has_wgmma", lambda _: True)
    half = Inputs(device, torch.bfloat16)
    assert len(launch.invariant_ways(half.normal(4096, k), half.normal(1, k), 4096)) == ways


def test_a_rows_bits_do_not_depend_on_the_batch(inputs: Inputs) -> None:
    weight, x = random_product(inputs, 40, 70).weight, inputs.normal(150, 70)
    assert isinstance(weight, torch.Tensor)
    batch, alone = inputs.poisoned(150, 40), inputs.poisoned(150, 40)
    invariant_linear(x, weight, batch)
    for row in (0, 63, 64, 149):
        invariant_linear(x[row : row + 1], weight, alone[row : row + 1])
        assert torch.equal(alone[row], batch[row])
    invariant_linear(x[5:100], weight, alone[5:100])
    assert torch.equal(alone[5:100], batch[5:100])


MODELS = {  # hidden, attention (queries; with keys and values), intermediate and vocabulary sizes of published models
    "1b": (2048, 2048, 3072, 8192, 128256),
    "8b": (4096, 4096, 6144, 14336, 128256),
    "0.6b": (1024, 2048, 4096, 3072, 151936),
    "0.5b": (896, 896, 1152, 4864, 151936),
}
PRODUCTS = [
    pytest.param(n, k, gate, id=f"{name}-{product}")
    for name, (hidden, queries, qkv, intermediate, vocab) in MODELS.items()
    for product, n, k, gate in (
        ("qkv", qkv, hidden, False),
        ("output", hidden, queries, False),
        ("gate and up", 2 * intermediate, hidden, True),
        ("down", hidden, intermediate, False),
        ("head", vocab, hidden, False),
    )
]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("n", "k", "gate"), PRODUCTS)
def test_row_tiles_keep_registers_free(n: int, k: int, gate: bool, itemsize: int) -> None:
    tile = row_tile(n, k, 8 * itemsize, gate=gate)
    chunks = -(-k // tile.chunk)
    bytes_per_thread = tile.rows * tile.chunk * chunks * itemsize / (32 * tile.warps)
    assert 16 <= bytes_per_thread <= 128 * itemsize
    assert tile.warps <= 8
    assert tile.chunk * chunks < 1.35 * k


@pytest.mark.parametrize("room", [97 * 1024, 161 * 1024, 225 * 1024])
@pytest.mark.parametrize(("n", "k", "gate"), PRODUCTS)
def test_skinny_tiles_fit_into_shared_memory(n: int, k: int, gate: bool, room: int) -> None:
    for m in (2, 16, 17, 64, 128):
        for splits in (None, split_count(m, n, k)):
            if gate and splits is not None:
                continue
            tile = skinny_tile(m, n, k, 2, gate=gate, splits=splits, room=room)
            assert (tile.bn + tile.bm) * tile.bk * 2 * tile.stages <= room
            assert tile.bm >= m
            assert k // tile.splits >= tile.bk


def test_slices_of_the_measured_shapes() -> None:
    assert [split_count(m, 2048, 2048) for m in (2, 16, 32, 64)] == [3, 3, 3, 2]
    assert [split_count(m, 2048, 8192) for m in (2, 16, 17, 64)] == [3, 3, 3, 3]
    assert [split_count(m, 3072, 3072) for m in (8, 32, 64)] == [2, 2, 2]
    assert [split_count(m, 5120, 5120) for m in (8, 32, 64)] == [1, 1, 1]
    assert [split_count(m, 4096, 14336) for m in (8, 32, 64)] == [2, 2, 2]
    assert [split_count(m, 16384, 512) for m in (8, 64)] == [1, 1]


def test_a_tile_that_the_copy_engine_fetches_fits_and_programs_of_a_gate_begin_at_once() -> None:
    room = 225 * 1024
    for m, (n, k), gate, splits, taken in itertools.product(
        (2, 33, 64, 128), ((6144, 4096), (28672, 4096), (16384, 2048)), (False, True), (1, 2), (0, BESIDE)
    ):
        if tile := copied_tile(m, n, k, (2, 2, 1), gate=gate, splits=splits, room=room, taken=taken):
            bytes_per_stage = (tile.bm + tile.bn) * tile.bk * 2
            beside = max(1, room // (bytes_per_stage * tile.stages))
            assert bytes_per_stage * tile.stages <= room - taken
            assert tile.stages >= 2
            assert taken or not gate or -(-n // tile.bn) <= 132 * beside
        else:
            assert m <= 32
            assert splits == 1
    for m, n, k in (
        (129, 6144, 4096),
        (64, 128256, 4096),
        (64, 6144, 4000),
        (64, 6136, 4096),
        (64, 512, 4096),
    ):
        for sizes in ((2, 2, 1), (1, 2, ROW), (1, 1, ROW)):
            assert copied_tile(m, n, k, sizes, gate=False, splits=1, room=room, taken=0) is None


@pytest.mark.parametrize("x_bytes", [1, 2])
@pytest.mark.parametrize("group", [128, ROW])
def test_8_bit_floats_that_the_copy_engine_fetches_have_steps_on_their_way(x_bytes: int, group: int) -> None:
    room = 225 * 1024
    for m, (n, k), gate, splits in itertools.product(
        (2, 9, 16, 33, 64), ((6144, 4096), (28672, 4096), (16384, 2048)), (False, True), (1, 8)
    ):
        sizes = (1, x_bytes, group)
        if tile := copied_tile(m, n, k, sizes, gate=gate, splits=splits, room=room, taken=0):
            assert tile.bm >= m
            assert 2 <= tile.stages <= 16
            assert tile.stages * (tile.bn + tile.bm * x_bytes) * tile.bk <= room
            assert tile.bk == 128 or (group == ROW and x_bytes == 1)
        else:
            assert x_bytes == 2
            assert not 8 < m <= 16 or (splits == 1 and not gate)


def test_programs_that_would_not_all_run_at_once_take_less_memory_each() -> None:
    for n, stages in ((16384, 4), (20480, 3), (28672, 4), (34816, 8)):
        assert skinny_tile(8, n, 2560, 2, gate=True, splits=None, room=225 * 1024).stages == stages


def test_row_tiles_of_the_measured_shapes() -> None:
    assert row_tile(4096, 2560, 16, gate=False)[:3] == (4, 2, 512)
    assert row_tile(20480, 2560, 16, gate=True)[:3] == (2, 2, 512)
    assert row_tile(262144, 2560, 16, gate=False)[:3] == (4, 4, 512)
    assert row_tile(16384, 2048, 16, gate=True)[:3] == (4, 4, 2048)
    assert row_tile(2048, 8192, 16, gate=False)[:3] == (4, 8, 8192)
    assert row_tile(6144, 4096, 16, gate=False)[:3] == (4, 4, 1024)
    assert row_tile(4096, 2048, 16, gate=False)[:3] == (4, 4, 1024)
    assert row_tile(3072, 2048, 16, gate=False)[:3] == (2, 2, 2048)
    assert row_tile(128256, 4096, 16, gate=False)[:3] == (2, 8, 4096)
    assert row_tile(28672, 4096, 4, gate=True)[:4] == (16, 4, 1024, 2)
    assert row_tile(4096, 14336, 4, gate=False)[:4] == (8, 4, 2048, 1)


def test_a_head_that_is_plain_takes_no_memory_for_slices() -> None:
    how: dict[str, Any] = {"max_m": 64, "dtype": torch.bfloat16, "device": torch.device("cpu")}
    head = torch.empty(128256, 4096, dtype=torch.bfloat16, device="meta")
    plain = LinearWorkspace.create([head], **how)
    stored = StoredWeight(FP8(), head.to(FP8.dtype), head[:, :1].float())
    kept = LinearWorkspace.create([stored], **how)
    assert len(plain.partials) == 1 < len(kept.partials)
