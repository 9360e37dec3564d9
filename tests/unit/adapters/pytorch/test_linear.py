"""Packed and quantized linear layers stay close to the float32 product."""

from __future__ import annotations

import subprocess
import sys

import attrs
import pytest
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.linear import Linear, half, in_fixed_rows, onednn, pack_linears
from nanoserve.adapters.pytorch.linear.half import HalfLinear
from nanoserve.adapters.pytorch.linear.integers import Int4Linear, Int8Linear
from nanoserve.adapters.pytorch.linear.onednn import OneDNNLinear
from nanoserve.ports.errors import BadValueError

needs_onednn = pytest.mark.skipif(
    not onednn.available(torch.bfloat16), reason="no bfloat16 products on this CPU"
)
needs_half = pytest.mark.skipif(not half.available(), reason="no products with half weights on this CPU")


def make(
    in_features: int = 96,
    out_features: int = 112,
    *,
    bias: bool,
    dtype: torch.dtype,
    stored: torch.dtype | None = None,
) -> nn.Sequential:
    """A module with one linear layer inside; weights with outliers and unequal rows, as a checkpoint stores them."""
    generator = torch.Generator().manual_seed(0)
    linear = Linear(in_features, out_features, bias=bias)
    weight = torch.randn(out_features, in_features, generator=generator)
    weight *= torch.linspace(0.01, 3, out_features)[:, None]
    linear.weight = nn.Parameter(weight.to(stored or dtype).to(dtype), requires_grad=False)
    if bias:
        linear.bias = nn.Parameter(
            torch.randn(out_features, generator=generator).to(dtype), requires_grad=False
        )
    return nn.Sequential(linear)


def exact_product(model: nn.Module, x: Tensor) -> Tensor:
    (linear,) = model.children()
    assert isinstance(linear, Linear)
    product = x.float() @ linear.weight.float().T
    return product if linear.bias is None else product + linear.bias.float()


def inputs(rows: int, dtype: torch.dtype, size: int = 96) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows)).to(dtype)


@attrs.frozen
class Form:
    """A form that a linear layer is packed into, how far its products may be from the exact ones, and what the weights were stored in."""

    quantization: str | None
    kind: type[nn.Module]
    most: float
    least: float = 0.0
    stored: torch.dtype | None = None


ONEDNN, INT8, INT4 = (
    Form(None, OneDNNLinear, 4e-3),
    Form("int8", Int8Linear, 0.01),
    Form("int4", Int4Linear, 0.1, least=0.01),
)
FORMS = [
    pytest.param(ONEDNN, torch.bfloat16, (96, 112), marks=needs_onednn, id="onednn"),
    pytest.param(ONEDNN, torch.bfloat16, (1024, 1024), marks=needs_onednn, id="large onednn"),
    pytest.param(attrs.evolve(ONEDNN, most=1e-6), torch.float32, (96, 112), id="onednn float32"),
    pytest.param(attrs.evolve(ONEDNN, most=1e-6), torch.float32, (1024, 1024), id="large onednn float32"),
    *(
        pytest.param(
            Form(None, HalfLinear, 1e-6, stored=stored),
            torch.float32,
            shape,
            marks=needs_half,
            id=f"half {stored} {shape}",
        )
        for stored in (torch.bfloat16, torch.float16)
        for shape in ((96, 112), (1024, 1024), (7, 3))
    ),
    *(
        pytest.param(form, dtype, (96, 112), id=f"{form.quantization} {dtype}")
        for form in (INT8, INT4)
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(
        pytest.param(form, torch.float32, (64, 2 * 1024 + 16), id=f"{form.quantization} in pieces")
        for form in (INT8, INT4)
    ),
    pytest.param(attrs.evolve(INT8, quantization="int4"), torch.float32, (96, 100), id="odd outputs"),
    pytest.param(attrs.evolve(INT8, quantization="int4"), torch.float32, (90, 112), id="odd inputs"),
    pytest.param(INT8, torch.bfloat16, (90, 112), id="int8 of odd inputs"),
]


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("form", "dtype", "shape"), FORMS)
def test_a_packed_layer_is_as_close_as_its_form_allows(
    form: Form, dtype: torch.dtype, shape: tuple[int, int], rows: int, bias: bool
) -> None:
    model, x = make(*shape, bias=bias, dtype=dtype, stored=form.stored), inputs(rows, dtype, shape[0])
    exact = exact_product(model, x)
    pack_linears(model, form.quantization)
    assert isinstance(model[0], form.kind)
    actual: Tensor = model(x)
    assert actual.dtype == dtype
    assert actual.shape == (rows, shape[1])
    assert form.least <= (actual.float() - exact).norm() / exact.norm() < form.most


@needs_half
@pytest.mark.parametrize("stray", [1e5, torch.inf, torch.nan, 1 / 3])
def test_a_weight_that_half_floats_change_is_kept_as_it_is(stray: float) -> None:
    model = make(bias=False, dtype=torch.float32, stored=torch.bfloat16)
    linear = model[0]
    assert isinstance(linear, Linear)
    linear.weight[half.PIECE % 112, 5] = stray
    pack_linears(model)
    assert isinstance(model[0], OneDNNLinear)
    product: Tensor = model(torch.eye(96)[5:6])
    torch.testing.assert_close(product[0], linear.weight[:, 5], equal_nan=True)


@needs_half
def test_a_product_asks_its_half_weights_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed weight answers by an exception in C++, which takes longer than a small product."""
    model = make(bias=True, dtype=torch.float32, stored=torch.bfloat16)
    pack_linears(model)
    asked: list[str] = []
    monkeypatch.setattr(torch.ScriptObject, "__getattr__", lambda _, name: asked.append(name))
    model(inputs(2, torch.float32))
    assert isinstance(model[0], HalfLinear)
    assert not asked


def test_who_packs_no_half_weights_finds_torch_as_it_was() -> None:
    program = "import torch, nanoserve.adapters.pytorch.linear.half; assert '__torch_function__' not in vars(torch.ScriptObject)"
    subprocess.run([sys.executable, "-c", program], check=True)


@needs_half
def test_weights_below_the_normal_range_of_half_floats_are_kept_as_they_are() -> None:
    model = make(bias=False, dtype=torch.float32, stored=torch.bfloat16)
    linear = model[0]
    assert isinstance(linear, Linear)
    linear.weight.mul_(2**-20)
    pack_linears(model)
    assert isinstance(model[0], OneDNNLinear)


@needs_half
def test_numbers_too_small_for_half_floats_do_not_count() -> None:
    """A product rounds off more than they contribute."""
    model = make(bias=False, dtype=torch.float32, stored=torch.bfloat16)
    linear = model[0]
    assert isinstance(linear, Linear)
    linear.weight[:, 0] = 1e-9
    pack_linears(model)
    assert isinstance(model[0], HalfLinear)


@needs_half
def test_a_row_of_half_weights_in_fixed_rows_has_the_same_bits_in_any_company() -> None:
    model = make(1024, 112, bias=True, dtype=torch.float32, stored=torch.bfloat16)
    pack_linears(model)
    x = inputs(40, torch.float32, 1024)
    alone = torch.cat([in_fixed_rows(model[0], each) for each in torch.split(x, 1)])
    assert isinstance(model[0], HalfLinear)
    assert torch.equal(in_fixed_rows(model[0], x), alone)


@pytest.mark.parametrize("rows", [23, 24])
def test_int8_sums_do_not_overflow_half_precision(rows: int) -> None:
    linear = Linear(768, 16)
    linear.weight = nn.Parameter(torch.full((16, 768), 0.05, dtype=torch.float16), requires_grad=False)
    linear.weight[3] = 0
    product = Int8Linear(linear)(torch.ones(rows, 768, dtype=torch.float16))
    assert torch.equal(product[:, 3], torch.zeros(rows, dtype=torch.float16))
    assert product[:, 4].tolist() == pytest.approx([38.4] * rows, rel=0.01)


def test_int4_represents_sixteen_evenly_spaced_values_exactly() -> None:
    model = make(32, 16, bias=False, dtype=torch.float32)
    steps = torch.randint(16, (16, 32), generator=torch.Generator().manual_seed(0)).float()
    steps[:, 0], steps[:, 1] = 0, 15
    weight = steps * torch.arange(1, 17)[:, None] / 4 - 1
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    pack_linears(model, "int4")
    torch.testing.assert_close(model(torch.eye(32)), weight.T, rtol=0, atol=1e-4)


def test_a_zero_row_stays_zero() -> None:
    for quantization in ("int8", "int4"):
        model = make(bias=False, dtype=torch.float32)
        linear = model[0]
        assert isinstance(linear, Linear)
        linear.weight[3] = 0
        pack_linears(model, quantization)
        product: Tensor = model(inputs(2, torch.float32))
        assert product[:, 3].count_nonzero() == 0


def test_float16_and_machines_without_onednn_keep_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(bias=True, dtype=torch.float16)
    pack_linears(model)
    assert type(model[0]) is Linear
    monkeypatch.setattr(onednn, "available", lambda _: False)
    for dtype in (torch.float32, torch.bfloat16):
        model = make(bias=True, dtype=dtype, stored=torch.bfloat16)
        pack_linears(model)
        assert type(model[0]) is Linear


def test_machines_without_half_products_pack_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "available", lambda: False)
    model = make(bias=True, dtype=torch.float32, stored=torch.bfloat16)
    pack_linears(model)
    assert isinstance(model[0], OneDNNLinear)


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"int8, int4.*'fp4'"):
        pack_linears(make(bias=False, dtype=torch.float32), "fp4")
