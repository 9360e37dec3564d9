"""Linear layers for few rows equal the formula in float32, on odd shapes, and leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.linear import reference
from nanoserve.kernels.linear.launch import (
    Workspace,
    invariant_linear,
    row_linear,
    skinny_linear,
    split_linear,
)
from nanoserve.kernels.linear.tuning import row_tile, skinny_tile, split_count

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Operands:
    """Random x [m, k], weight [n, k] and what may be fused, in one dtype."""

    def __init__(self, m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(m * 7 + n * 3 + k)

        def noise(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(*shape, generator=generator) * scale).to(device, dtype)

        self.x, self.weight = noise(m, k), noise(n, k, scale=k**-0.5)
        self.bias, self.norm_weight = noise(n), noise(k) + 1
        self.residual, self.half_residual = noise(m, n), noise(m, n // 2)

    def out(self, gate: bool) -> Tensor:
        return torch.full_like(self.half_residual if gate else self.residual, torch.nan)


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


ROW_SHAPES = [(48, 32), (34, 96), (10, 33), (70, 288), (6, 1536), (4, 2048), (3, 3072), (66, 5120)]


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gate"])
@pytest.mark.parametrize("fused", [False, True], ids=["bare", "fused"])
@pytest.mark.parametrize(("n", "k"), ROW_SHAPES, ids=str)
def test_row(n: int, k: int, fused: bool, gate: bool, *, dtype: torch.dtype, device: torch.device) -> None:
    n -= n % 2 if gate else 0
    a = Operands(1, n, k, dtype, device)
    out, kept = a.out(gate), a.x.clone()
    extras: dict[str, Any] = {}
    if fused:
        residual = a.half_residual if gate else a.residual
        extras = {"bias": a.bias, "norm_weight": a.norm_weight, "residual": residual}
    row_linear(a.x, a.weight, out, eps=1e-3, gate=gate, **extras)
    close(out, reference.linear(a.x, a.weight, eps=1e-3, gate=gate, **extras))
    assert torch.equal(a.x, kept)


@pytest.mark.parametrize("part", ["bias", "norm_weight", "residual"])
def test_each_part_of_a_row_stands_alone(part: str, dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(1, 20, 64, dtype, device)
    out = a.out(gate=False)
    row_linear(a.x, a.weight, out, eps=0.5, **{part: getattr(a, part)})
    close(out, reference.linear(a.x, a.weight, eps=0.5, **{part: getattr(a, part)}))


def test_a_row_may_be_added_in_place(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(1, 37, 64, dtype, device)
    expected = reference.linear(a.x, a.weight, residual=a.residual)
    row_linear(a.x, a.weight, a.residual, residual=a.residual)
    close(a.residual, expected)


def test_a_row_of_logits_may_be_float32(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(1, 40, 64, dtype, device)
    out = torch.full((1, 40), torch.nan, device=device)
    row_linear(a.x, a.weight, out)
    torch.testing.assert_close(out, reference.linear(a.x, a.weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gate"])
def test_a_row_writes_only_its_output(gate: bool, dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(1, 10 if gate else 5, 48, dtype, device)
    arena = torch.full((1, 16), torch.nan, dtype=dtype, device=device)
    row_linear(a.x, a.weight, arena[:, 4:9], gate=gate)
    assert arena.isnan().nonzero()[:, 1].tolist() == [0, 1, 2, 3, *range(9, 16)]


SKINNY_SHAPES = [
    (2, 48, 32),
    (3, 70, 96),
    (16, 64, 33),
    (17, 34, 160),
    (9, 40, 1024),
    (4, 34, 1056),
    (33, 66, 64),
    (128, 34, 64),
]


def workspace_for(a: Operands) -> Workspace:
    m, device = len(a.x), a.x.device
    space = Workspace.create(
        [(a.weight.shape[0], a.weight.shape[1])], max_m=m, dtype=a.x.dtype, device=device
    )
    space.partials.fill_(torch.nan)
    return space


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gate"])
@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize(("m", "n", "k"), SKINNY_SHAPES, ids=str)
def test_skinny(
    m: int, n: int, k: int, biased: bool, gate: bool, *, dtype: torch.dtype, device: torch.device
) -> None:
    a = Operands(m, n, k, dtype, device)
    bias = a.bias if biased else None
    out, space = a.out(gate), workspace_for(a)
    for _ in range(2):  # what the first leaves in the workspace must not show in the second
        out.fill_(torch.nan)
        skinny_linear(a.x, a.weight, out, bias=bias, gate=gate, workspace=space)
        close(out, reference.linear(a.x, a.weight, bias=bias, gate=gate))
        assert not space.counters.any()


def test_some_of_these_skinny_products_are_split() -> None:
    tile = skinny_tile(9, 40, 1024, 4, gate=False, splits=None, room=99 * 1024)
    assert tile.splits > 1


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gate"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(9, 40, 1024), (3, 70, 96), (40, 66, 384), (20, 130, 700)], ids=str
)
def test_skinny_with_the_tiles_of_half_precision(
    m: int, n: int, k: int, *, gate: bool, device: torch.device
) -> None:
    a = Operands(m, n, k, torch.float16, device)
    out = a.out(gate)
    skinny_linear(a.x, a.weight, out, bias=a.bias, gate=gate, workspace=workspace_for(a))
    close(out, reference.linear(a.x, a.weight, bias=a.bias, gate=gate))


@pytest.mark.parametrize(("m", "n", "k"), [(2, 40, 2048), (40, 66, 1024), (5, 34, 1100)], ids=str)
def test_split_with_the_tiles_of_half_precision(m: int, n: int, k: int, device: torch.device) -> None:
    a = Operands(m, n, k, torch.float16, device)
    partials = torch.full((split_count(m, n, k), m, n), torch.nan, device=device)
    split_linear(a.x, a.weight, partials)
    torch.testing.assert_close(partials.sum(0), reference.linear(a.x, a.weight), rtol=1e-3, atol=1e-3)


def test_a_skinny_product_writes_only_its_output(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(3, 36, 512, dtype, device)
    arena = torch.full((8, 36), torch.nan, dtype=dtype, device=device)
    skinny_linear(a.x, a.weight, arena[2:5], workspace=workspace_for(a))
    assert arena.isnan().any(dim=1).tolist() == [True, True, False, False, False, True, True, True]


def test_rows_beyond_m_are_not_read(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(16, 36, 64, dtype, device)
    expected = reference.linear(a.x[:3], a.weight)
    a.x[3:] = torch.nan
    out = a.out(gate=False)
    skinny_linear(a.x[:3], a.weight, out[:3], workspace=workspace_for(a))
    close(out[:3], expected)


def test_each_tile_has_its_own_part_of_the_workspace(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(9, 200, 1024, dtype, device)
    space = workspace_for(a)
    skinny_linear(a.x, a.weight, a.out(gate=False), workspace=space)
    assert len(space.counters) > 1
    assert not space.partials.isnan().any()


def test_too_small_a_workspace_is_refused(device: torch.device) -> None:
    a = Operands(4, 64, 1024, torch.float32, device)
    enough = workspace_for(a)
    assert len(enough.counters) > 1
    for space in (
        enough._replace(partials=enough.partials[:-1]),
        enough._replace(counters=enough.counters[:-1]),
        Workspace.create([], max_m=4, dtype=torch.float32, device=device),
    ):
        with pytest.raises(ValueError, match="64 x 1024"):
            skinny_linear(a.x, a.weight, a.out(gate=False), workspace=space)


def test_more_rows_than_a_tile_are_refused(device: torch.device) -> None:
    a = Operands(129, 4, 8, torch.float32, device)
    with pytest.raises(ValueError, match="129 rows"):
        skinny_linear(a.x, a.weight, a.out(gate=False), workspace=workspace_for(a))


@pytest.mark.parametrize(
    ("m", "n", "k"), [(2, 48, 32), (16, 40, 1024), (5, 34, 1056), (5, 34, 1100), (70, 33, 512)], ids=str
)
def test_split(m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(m, n, k, dtype, device)
    partials = torch.full((split_count(m, n, k), m, n), torch.nan, device=device)
    split_linear(a.x, a.weight, partials)
    torch.testing.assert_close(partials.sum(0), reference.linear(a.x, a.weight), rtol=1e-4, atol=1e-4)
    if len(partials) > 1:
        assert int((partials.abs().amax(dim=(1, 2)) > 0).sum()) > 1


def test_a_wrong_number_of_partial_sums_is_refused(device: torch.device) -> None:
    a = Operands(2, 48, 32, torch.float32, device)
    with pytest.raises(ValueError, match="1 slices, not 3"):
        split_linear(a.x, a.weight, torch.empty(3, 2, 48, device=device))


@pytest.mark.parametrize("biased", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize(("t", "n", "k"), [(1, 48, 32), (65, 70, 33), (130, 130, 64), (7, 33, 100)], ids=str)
def test_invariant(t: int, n: int, k: int, biased: bool, *, dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(t, n, k, dtype, device)
    bias, out = a.bias if biased else None, a.out(gate=False)
    invariant_linear(a.x, a.weight, out, bias=bias)
    close(out, reference.linear(a.x, a.weight, bias=bias))
    wanted = reference.linear(a.x, a.weight, bias=bias, residual=a.residual)
    invariant_linear(a.x, a.weight, a.residual, bias=bias, residual=a.residual)
    close(a.residual, wanted)


def test_a_rows_bits_do_not_depend_on_the_batch(dtype: torch.dtype, device: torch.device) -> None:
    a = Operands(150, 40, 70, dtype, device)
    batch, alone = a.out(gate=False), a.out(gate=False)
    invariant_linear(a.x, a.weight, batch)
    for row in (0, 63, 64, 149):
        invariant_linear(a.x[row : row + 1], a.weight, alone[row : row + 1])
        assert torch.equal(alone[row], batch[row])
    invariant_linear(a.x[5:100], a.weight, alone[5:100])
    assert torch.equal(alone[5:100], batch[5:100])


MODELS = {  # (N, K, gate) of the products of published models
    "1b": [
        (3072, 2048, False),
        (2048, 2048, False),
        (16384, 2048, True),
        (2048, 8192, False),
        (128256, 2048, False),
    ],
    "8b": [
        (6144, 4096, False),
        (4096, 4096, False),
        (28672, 4096, True),
        (4096, 14336, False),
        (128256, 4096, False),
    ],
    "0.6b": [
        (4096, 1024, False),
        (1024, 2048, False),
        (6144, 1024, True),
        (1024, 3072, False),
        (151936, 1024, False),
    ],
    "0.5b": [
        (1152, 896, False),
        (896, 896, False),
        (9728, 896, True),
        (896, 4864, False),
        (151936, 896, False),
    ],
}
PRODUCTS = [
    pytest.param(*product, id=f"{name}-{i}")
    for name, model in MODELS.items()
    for i, product in enumerate(model)
]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("n", "k", "gate"), PRODUCTS)
def test_row_tiles_keep_registers_free(n: int, k: int, gate: bool, itemsize: int) -> None:
    tile = row_tile(n, k, itemsize, gate=gate)
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
    assert [split_count(m, 2048, 2048) for m in (2, 16, 32, 64)] == [4, 4, 4, 4]
    assert [split_count(m, 2048, 8192) for m in (2, 16, 17, 64)] == [8, 8, 4, 4]
