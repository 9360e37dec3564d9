"""What a CPU tells of its products is what computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanoserve.adapters.pytorch.linear import PackedLinear
from nanoserve.adapters.pytorch.linear.integers import Int4Linear, Int8Linear
from nanoserve.adapters.pytorch.linear.plain import Linear
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.told import told_forms, told_products
from nanoserve.kernels.experts.cpu import TOLD
from nanoserve.kernels.forms import FORMS
from tests.unit.adapters.pytorch.tiny_models import CPU, make_tiny_model


@pytest.mark.parametrize(("asked", "kinds"), [("int8", [Int8Linear]), ("int4", [Int4Linear, Int8Linear])])
def test_layers_are_told_by_the_form_that_they_have(
    tmp_path: Path, asked: str, kinds: list[type[PackedLinear]]
) -> None:
    spec = make_tiny_model(tmp_path, hidden_size=64, intermediate_size=104).spec
    model = build_model(spec, str(tmp_path), dtype=torch.bfloat16, device=CPU, quantization=asked)
    told = told_products(model, invariant=False)
    assert {type(each) for each in model.modules() if isinstance(each, Linear)} == {*kinds}
    assert told == {each.kept: each.told for each in kinds}


def test_unquantized_layers_are_told_by_their_dtype(tmp_path: Path) -> None:
    spec = make_tiny_model(tmp_path, "qwen3_moe").spec
    model = build_model(spec, str(tmp_path), dtype=torch.float16, device=CPU)
    assert told_products(model, invariant=False) == {
        "float16": Linear.told,
        "experts in float16": TOLD,
    }


def test_a_machine_tells_of_every_form() -> None:
    told = told_forms()
    assert {*FORMS, "bfloat16", "int4", "int8"} <= told.keys()
    assert all(told.values())
    if not torch.cuda.is_available():
        assert told["int8"] == Int8Linear.told
