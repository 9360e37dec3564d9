"""A weight that a checkpoint holds twice, in two names, forms or files: nobody can say which one is right, and the error names both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint, overlay
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.packed_layouts import LAYOUTS

WEIGHT = torch.randn(16, 128, generator=torch.Generator().manual_seed(1))
EXPERTS = ["model.e.0.weight", "model.e.1.weight"]
Shard = dict[str, Tensor]


def packed(layout: str, stem: str = "model.a") -> Shard:
    parts, _ = LAYOUTS[layout].write(WEIGHT, 0)
    return {f"{stem}.{part}": tensor.contiguous() for part, tensor in parts.items()}


FLOATS: Shard = {"model.a.weight": WEIGHT}
STACK: Shard = {"model.e": torch.stack((WEIGHT, WEIGHT))}
ONE: Shard = {EXPERTS[1]: WEIGHT}
EIGHT_BITS: Shard = {
    "model.a.weight": WEIGHT.to(torch.float8_e4m3fn),
    "model.a.weight_scale_inv": torch.ones(1, 1),
}
BLOCKS: Shard = {
    "model.a.weight_blocks": torch.zeros(2, 16, 4, 16, dtype=torch.uint8),
    "model.a.weight_scales": torch.zeros(2, 16, 4, dtype=torch.uint8),
}

TWICE: dict[str, tuple[Shard, Shard, str, str]] = {
    "floats and AWQ": (FLOATS, packed("awq"), "model.a.weight", "model.a.qweight"),
    "floats and compressed-tensors": (FLOATS, packed("W4A16"), "model.a.weight", "model.a.weight_packed"),
    "floats and NVFP4": (FLOATS, packed("NVFP4"), "model.a.weight", "model.a.weight_packed"),
    "8-bit floats and compressed-tensors": (
        EIGHT_BITS,
        packed("W4A16"),
        "model.a.weight",
        "model.a.weight_packed",
    ),
    "AWQ and compressed-tensors": (
        packed("awq"),
        packed("W4A16"),
        "model.a.qweight",
        "model.a.weight_packed",
    ),
    "GPTQ and AWQ": (packed("gptq"), packed("awq"), "model.a.qweight", "model.a.qweight"),
    "AWQ and blocks of experts": (packed("awq"), BLOCKS, "model.a.qweight", "model.a.weight_blocks"),
    "floats in two files": (FLOATS, FLOATS, "model.a.weight", "model.a.weight"),
    "with and without the name of a model": (
        FLOATS,
        {"a.weight": WEIGHT},
        "model.a.weight",
        "a.weight",
    ),
    "a stack and one of its matrices": (STACK, ONE, "model.e", EXPERTS[1]),
    "a stack and one of its matrices, packed": (
        STACK,
        packed("awq", "model.e.1"),
        "model.e",
        "model.e.1.qweight",
    ),
}


def into(held: Shard) -> Destinations:
    """Those of what is held: a matrix, or two experts."""
    if not held.keys() & STACK.keys():
        return Destinations({"model.a.weight": torch.empty(WEIGHT.shape)})
    experts = torch.empty(2, *WEIGHT.shape)
    return Destinations(dict(zip(EXPERTS, experts, strict=True)), stacks={"model.e": (experts, EXPERTS)})


@pytest.mark.parametrize(("one", "other", "first", "second"), TWICE.values(), ids=TWICE)
def test_both_are_named(tmp_path: Path, one: Shard, other: Shard, first: str, second: str) -> None:
    files = {"1.safetensors": one, "2.safetensors": other}
    for file, tensors in files.items():
        save_file(tensors, tmp_path / file)
    weight_map = {f"{file} {name}": file for file, tensors in files.items() for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    named = {f"1.safetensors: {first!r}", f"2.safetensors: {second!r}"}
    with pytest.raises(ModelLoadError, match="are one weight") as refused:
        load_checkpoint(str(tmp_path), into(one), packing=LAYOUTS["awq"].packing, read=False)
    assert {re.sub(r"\S*/", "", each) for each in re.findall(r"\S+: '\S+'", str(refused.value))} == named


def test_new_weights_that_come_twice_are_named_too() -> None:
    memory = Path("memory")
    stored = [StoredTensor(memory, name, each, 0, in_memory=True) for name, each in (STACK | ONE).items()]
    with pytest.raises(ModelLoadError, match=f"'model.e' and .*'{EXPERTS[1]}' are one weight"):
        overlay(stored, into(STACK))
