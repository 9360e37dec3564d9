"""Packed stacks of experts become the very numbers that transformers unpacks, and a checkpoint of them its model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from nanoserve.kernels.forms.mxfp4 import unpack
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import GPT_OSS, PagedRun, TinyModel, make_prompt, make_tiny_model

STACKS = ("gate_up_proj", "down_proj")


def random_parts(experts: int, columns: int, rows: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(columns)
    blocks = torch.randint(256, (experts, columns, rows // 32, 16), generator=dice, dtype=torch.uint8)
    return blocks, torch.randint(118, 127, (experts, columns, rows // 32), generator=dice, dtype=torch.uint8)


def test_numbers_are_those_that_transformers_unpacks() -> None:
    blocks, _ = random_parts(3, 20, 96)
    scales = torch.arange(3 * 20 * 3).view(3, 20, 3).add(40).to(torch.uint8)
    for dtype in (torch.bfloat16, torch.float32):
        expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
        ours = torch.stack([unpack(*parts).t() for parts in zip(blocks, scales, strict=True)])
        assert torch.equal(ours.to(dtype), expected)
        assert torch.equal(ours.to(dtype).signbit(), expected.signbit())


@pytest.fixture
def packed(tmp_path: Path) -> TinyModel:
    """A model whose experts are stored packed, and whose reference has the same numbers."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
    layer_types = ["sliding_attention", "full_attention"]
    tiny = make_tiny_model(tmp_path, "gpt_oss", **{**GPT_OSS, **sizes, "layer_types": layer_types})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for number, layer in enumerate(tiny.reference.model.layers):
        for name in STACKS:
            whole = f"model.layers.{number}.mlp.experts.{name}"
            experts, rows, columns = tensors.pop(whole).shape
            blocks, scales = random_parts(experts, columns, rows)
            tensors |= {f"{whole}_blocks": blocks, f"{whole}_scales": scales}
            values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            getattr(layer.mlp.experts, name).data.copy_(values)
    save_file(tensors, file)
    return tiny


def test_a_packed_checkpoint_computes_what_transformers_computes(packed: TinyModel) -> None:
    prompt = make_prompt(21)
    expected = packed.expected(prompt)["logits"]
    (logits,) = PagedRun.start(packed.build(), [prompt]).step([len(prompt)])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("lose the scales", "down_proj_scales"),
        ("cut a block", "have shapes"),
        ("rename", "no place in this model"),
        ("of a matrix", "o_proj.weight_blocks' has no place in this model"),
        ("no number", "down_proj_scales' has numbers that are not finite"),
    ],
)
def test_a_broken_stack_is_named(packed: TinyModel, change: str, named: str) -> None:
    file = packed.folder / "model.safetensors"
    tensors, stack = load_file(file), "model.layers.1.mlp.experts.down_proj"
    if change == "lose the scales":
        del tensors[f"{stack}_scales"]
    elif change == "no number":
        tensors[f"{stack}_scales"][-1, -1, -1] = 255
    elif change == "cut a block":
        tensors[f"{stack}_blocks"] = tensors[f"{stack}_blocks"][..., :8].contiguous()
    elif change == "of a matrix":
        matrix = "model.layers.1.self_attn.o_proj.weight"
        del tensors[matrix]
        for kind in ("_blocks", "_scales"):
            tensors[matrix + kind] = tensors[stack + kind].clone()
    else:
        tensors["model.other_blocks"] = tensors[f"{stack}_blocks"].clone()
        tensors["model.other_scales"] = tensors[f"{stack}_scales"].clone()
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=named):
        packed.build()
