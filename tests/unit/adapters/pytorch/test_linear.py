"""Packed and quantized linear layers stay close to the float32 product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear import Linear, onednn, pack_linears
from nanoserve.adapters.pytorch.linear.int4 import Int4Linear
from nanoserve.adapters.pytorch.linear.int8 import Int8Linear
from nanoserve.adapters.pytorch.linear.onednn import OneDNNLinear
from nanoserve.ports.errors import BadValueError

ROWS = pytest.mark.parametrize("rows", [1, 3, 64])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
needs_onednn = pytest.mark.skipif(not onednn.available(), reason="no bfloat16 products on this CPU")


def make(in_features: int = 96, out_features: int = 112, *, bias: bool, dtype: torch.dtype) -> nn.Sequential:
    """A module with one linear layer inside; weights with outliers and unequal rows."""
    generator = torch.Generator().manual_seed(0)
    linear = Linear(in_features, out_features, bias=bias)
    weight = torch.randn(out_features, in_features, generator=generator)
    weight *= torch.linspace(0.01, 3, out_features)[:, None]
    linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias:
        linear.bias = nn.Parameter(
            torch.randn(out_features, generator=generator).to(dtype), requires_grad=False
        )
    return nn.Sequential(linear)


def error(model: nn.Module, exact: Tensor, x: Tensor) -> float:
    """The error relative to the size of the answer."""
    actual: Tensor = model(x)
    assert actual.dtype == x.dtype
    return float((actual.float() - exact).norm() / exact.norm())


def exact_product(model: nn.Module, x: Tensor) -> Tensor:
    (linear,) = model.children()
    assert isinstance(linear, Linear)
    product = x.float() @ linear.weight.float().T
    return product if linear.bias is None else product + linear.bias.float()


def inputs(rows: int, dtype: torch.dtype, size: int = 96) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)).to(dtype)


@needs_onednn
@ROWS
@pytest.mark.parametrize("bias", [False, True])
def test_the_onednn_form_rounds_like_bfloat16(rows: int, bias: bool) -> None:
    model, x = make(bias=bias, dtype=torch.bfloat16), inputs(rows, torch.bfloat16)
    exact = exact_product(model, x)
    pack_linears(model)
    assert isinstance(model[0], OneDNNLinear)
    assert error(model, exact, x) < 4e-3


@needs_onednn
@ROWS
def test_large_onednn_products_keep_their_number_of_rows(rows: int) -> None:
    model, x = make(1024, 1024, bias=True, dtype=torch.bfloat16), inputs(rows, torch.bfloat16, 1024)
    exact = exact_product(model, x)
    pack_linears(model)
    assert error(model, exact, x) < 4e-3
    assert model(x).shape == (rows, 1024)


@DTYPES
@ROWS
@pytest.mark.parametrize("bias", [False, True])
def test_int8_is_within_one_percent(rows: int, bias: bool, dtype: torch.dtype) -> None:
    model, x = make(bias=bias, dtype=dtype), inputs(rows, dtype)
    exact = exact_product(model, x)
    pack_linears(model, "int8")
    assert isinstance(model[0], Int8Linear)
    assert error(model, exact, x) < 0.01


@pytest.mark.parametrize("rows", [23, 24])
def test_int8_sums_do_not_overflow_half_precision(rows: int) -> None:
    linear = Linear(768, 16)
    linear.weight = nn.Parameter(torch.full((16, 768), 0.05, dtype=torch.float16), requires_grad=False)
    linear.weight[3] = 0
    product = Int8Linear(linear)(torch.ones(rows, 768, dtype=torch.float16))
    assert torch.equal(product[:, 3], torch.zeros(rows, dtype=torch.float16))
    assert product[:, 4].tolist() == pytest.approx([38.4] * rows, rel=0.01)


@DTYPES
@ROWS
@pytest.mark.parametrize("bias", [False, True])
def test_int4_is_within_a_tenth(rows: int, bias: bool, dtype: torch.dtype) -> None:
    model, x = make(bias=bias, dtype=dtype), inputs(rows, dtype)
    exact = exact_product(model, x)
    pack_linears(model, "int4")
    assert isinstance(model[0], Int4Linear)
    assert 0.01 < error(model, exact, x) < 0.1


def test_int4_represents_sixteen_evenly_spaced_values_exactly() -> None:
    model = make(32, 16, bias=False, dtype=torch.float32)
    steps = torch.randint(16, (16, 32), generator=torch.Generator().manual_seed(0)).float()
    steps[:, 0], steps[:, 1] = 0, 15
    weight = steps * torch.arange(1, 17)[:, None] / 4 - 1
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    pack_linears(model, "int4")
    torch.testing.assert_close(model(torch.eye(32)), weight.T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_layers_that_are_quantized_in_pieces(quantization: str) -> None:
    model, x = make(64, 2 * 1024 + 16, bias=False, dtype=torch.float32), inputs(3, torch.float32, 64)
    exact = exact_product(model, x)
    pack_linears(model, quantization)
    assert error(model, exact, x) < 0.1


def test_int4_leaves_odd_shapes_to_int8() -> None:
    for shape in ((96, 100), (90, 112)):
        model = make(*shape, bias=False, dtype=torch.float32)
        x = inputs(2, torch.float32, shape[0])
        exact = exact_product(model, x)
        pack_linears(model, "int4")
        assert isinstance(model[0], Int8Linear)
        assert error(model, exact, x) < 0.01


def test_a_zero_row_stays_zero() -> None:
    for quantization in ("int8", "int4"):
        model = make(bias=False, dtype=torch.float32)
        linear = model[0]
        assert isinstance(linear, Linear)
        linear.weight[3] = 0
        pack_linears(model, quantization)
        product: Tensor = model(inputs(2, torch.float32))
        assert product[:, 3].count_nonzero() == 0


def test_float32_and_machines_without_onednn_keep_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "available", lambda: False)
    for dtype in (torch.float32, torch.bfloat16):
        model = make(bias=True, dtype=dtype)
        pack_linears(model)
        assert isinstance(model[0], Linear)


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"int8, int4.*'fp4'"):
        pack_linears(make(bias=False, dtype=torch.float32), "fp4")
