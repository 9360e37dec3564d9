"""Checkpoints of 8-bit floats, against the product of weight and scale written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch.weights.checkpoint import load_checkpoint
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import PagedRun, make_prompt, make_tiny_model

EIGHT_BITS = torch.float8_e4m3fn


def quantized(weight: Tensor, form: str) -> tuple[Tensor, Tensor, Tensor]:
    """A weight as 8-bit floats, its scales, and what both stand for, float32."""
    if form != "blocks":
        scale = weight.abs().amax(-1, keepdim=True) / 448 if form == "rows" else weight.abs().amax() / 448
        stored = (weight / scale).to(EIGHT_BITS)
        return stored, scale, stored.float() * scale
    stored, exact = torch.empty_like(weight, dtype=EIGHT_BITS), torch.empty_like(weight)
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // 128), -(-columns // 128))
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            part = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
            scale[row, column] = weight[part].abs().max() / 448
            stored[part] = (weight[part] / scale[row, column]).to(EIGHT_BITS)
            exact[part] = stored[part].float() * scale[row, column]
    return stored, scale, exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["blocks", "rows", "tensor"])
@pytest.mark.parametrize("shape", [(300, 130), (128, 256), (5, 7)])
def test_a_weight_is_multiplied_with_its_scales_even_at_cut_edges(
    tmp_path: Path, shape: tuple[int, int], form: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator)
    stored, scale, exact = quantized(weight, form)
    suffix = "_scale_inv" if form == "blocks" else "_scale"
    tensors = {"a.weight": stored, f"a.weight{suffix}": scale, "a.input_scale": torch.ones(1)}
    save_file(tensors | {"b.weight": weight}, tmp_path / "model.safetensors")
    filled = {"a.weight": torch.empty(shape, dtype=dtype), "b.weight": torch.empty(shape, dtype=dtype)}
    load_checkpoint(str(tmp_path), filled, tied_head=False)
    assert torch.equal(filled["a.weight"], exact.to(dtype))
    assert torch.equal(filled["b.weight"], weight.to(dtype))


def test_a_model_of_8_bit_blocks_computes_what_its_weights_stand_for(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, hidden_size=144, intermediate_size=200)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name], tensors[f"{name}_scale_inv"], exact = quantized(tensors[name], "blocks")
        tiny.reference.get_parameter(name).data.copy_(exact)
    save_file(tensors, tmp_path / "model.safetensors")
    prompt = make_prompt(21)
    (logits,) = PagedRun.start(tiny.build(), [prompt]).step([21])
    torch.testing.assert_close(logits, tiny.expected(prompt)["logits"], rtol=0, atol=1e-4)


STORED = torch.ones(130, 3).to(EIGHT_BITS)


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"a.weight": STORED}, r"a.weight_scale_inv \(or _scale\) is in no file"),
        (
            {"a.weight": STORED, "a.weight_scale_inv": torch.ones(1, 1)},
            r"\[1, 1\]; a weight of 130 x 3 needs \[2, 1\]",
        ),
        (
            {"a.weight": STORED, "a.weight_scale": torch.ones(3)},
            r"needs \[\] or \[1\] or \[130\] or \[130, 1\]",
        ),
        ({"a.weight": torch.ones(130, 3), "a.weight_scale": torch.ones(130)}, "scales no weight"),
    ],
)
def test_scales_that_are_missing_or_do_not_fit_are_named_before_anything_is_read(
    tmp_path: Path, tensors: dict[str, Any], named: str
) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    destination = torch.full((130, 3), torch.nan)
    with pytest.raises(ModelLoadError, match=named):
        load_checkpoint(str(tmp_path), {"a.weight": destination}, tied_head=False)
    assert destination.isnan().all()
