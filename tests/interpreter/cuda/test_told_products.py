"""What a GPU tells of its products is what launches them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda import many_rows
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows, VendorProducts
from nanoserve.adapters.pytorch.cuda.policies import policy_for
from nanoserve.adapters.pytorch.cuda.told import told_forms, told_products
from nanoserve.adapters.pytorch.cuda.workspace import make_workspace
from nanoserve.adapters.pytorch.models import DecoderModel, build_model, build_random_model
from nanoserve.kernels.experts.launch import lists_round
from nanoserve.kernels.linear import launch
from tests.unit.adapters.pytorch.tiny_models import CPU, GPT_OSS, make_tiny_model

DTYPE: Final = torch.float16
LAUNCHES: Final = {
    "row_linear": "own kernel, CUDA cores",
    "skinny_linear": "own kernel, tensor cores",
    "packed_linear": "own kernel, widened in registers",
    "fp8_linear": "own kernel, rows rounded to 8-bit floats, too (W8A8)",
    "widened": "widened, then cuBLAS",
}


def of_form(folder: Path, quantization: str | None) -> DecoderModel:
    tiny = make_tiny_model(folder, hidden_size=128, intermediate_size=128)
    return build_model(tiny.spec, str(folder), dtype=DTYPE, device=CPU, quantization=quantization, keep=True)


def told_for(rows: int, told: str) -> str:
    """The part of a line that is for this many rows."""
    for part in told.split("; "):
        span, what = part.split(": ")
        numbers = [int(each) for each in re.findall(r"\d+", span)]
        if not numbers or numbers[0] <= rows <= numbers[-1]:
            return what
    raise AssertionError(told)


@pytest.mark.parametrize("quantization", [None, "fp8", "int4"])
def test_what_is_told_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    model = of_form(tmp_path, quantization)
    told = told_products(model, invariant=False)
    assert told.keys() == {"float16", *([quantization] if quantization else [])}
    called: list[str] = []
    for name in LAUNCHES:

        def note(weight: Any, *_: Any, name: str = name, **__: Any) -> Any:
            called.append(name)
            return weight

        monkeypatch.setattr(launch, name, note)
    monkeypatch.setattr(many_rows, "quantize_rows_into", lambda *_, **__: None)
    monkeypatch.setattr(VendorProducts, "multiply_plain", lambda *_, **__: None)
    space: Any = make_workspace(model, max_tokens=1100, max_num_seqs=4, dtype=DTYPE, device=CPU)
    ops: Any = SimpleNamespace(
        space=space, low_rank=None, shrink=lambda *_: None, adapt=lambda *_: False, pdl=False
    )
    product = model.products()[0].linear
    for rows in (1, 2, 16, 17, 64, 65, 128, 1025, 1100):
        called.clear()
        x = torch.empty(rows, product.in_features, dtype=DTYPE)
        policy = policy_for(rows, ManyRows(invariant=False), space.most_skinny)
        policy.multiply(ops, x, product, torch.empty(rows, product.out_features))
        wanted = LAUNCHES[called[0]]
        if quantization is None:
            wanted = wanted.replace("widened, then ", "")
        assert told_for(rows, told[quantization or "float16"]) == wanted


def test_with_one_order_of_summation_rows_are_told_no_other_way(tmp_path: Path) -> None:
    told = told_products(of_form(tmp_path, "int4"), invariant=True)
    assert told == {
        "int4": "all: widened, then one order of summation",
        "float16": "all: one order of summation",
    }


def test_experts_are_told_apart(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "gpt_oss", **GPT_OSS)
    model = build_random_model(tiny.spec, dtype=DTYPE, device=CPU, seed=0)
    told = told_products(model, invariant=False)
    assert told["experts in float16"] == "1: own kernel, CUDA cores; more: own kernel, expert by expert"
    assert told["float16"].endswith("more: cuBLAS")


def test_experts_in_8_bit_floats_round_rows_where_the_launch_does(tmp_path: Path) -> None:
    spec = attrs.evolve(make_tiny_model(tmp_path, "minimax_m2").spec, stored="fp8")
    model = build_random_model(spec, dtype=DTYPE, device=CPU, seed=0, keep=True)
    (mixture,), line = model.mixtures(), told_products(model, invariant=False)["experts in fp8"]
    for rows in (2, 64, 65, 512, 8192):
        x = torch.empty(1, 1, dtype=DTYPE).expand(rows, 1)
        rounds = lists_round(mixture.experts, x, mixture.routing.slots, invariant=False)
        assert ("W8A8" in told_for(rows, line)) == rounds
    assert "W8A8" in line


def test_each_form_is_told() -> None:
    told = told_forms(torch.bfloat16, CPU)
    assert list(told) == ["bfloat16", "fp8", "mxfp4", "int4", "int8"]
    assert "2 to 16: own kernel, tensor cores" in told["fp8"]
    assert "by shape; more: widened, then cuBLAS" in told["int4"]
