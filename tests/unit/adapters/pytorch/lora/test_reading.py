"""How an adapter's numbers come from its file to their places: rounded once, in few calls, and nowhere else on the way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.huggingface.spec import spec_of
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.models import PAGES
from nanoserve.ports.errors import BadValueError
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_tiny_model

SCALE = 32 / 7
WIDE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
"""An adapter of rank 128 has 96 MB."""
Pairs = Mapping[str, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


def write(folder: Path, loras: HostLoras, rank: int, dtype: torch.dtype) -> Pairs:
    """A folder of random factors for every layer, which are returned."""
    generator = torch.Generator().manual_seed(7)
    factors = {
        name: (
            torch.randn(rank, columns, generator=generator).to(dtype),
            torch.randn(rows, rank, generator=generator).to(dtype),
        )
        for name, (rows, columns) in loras.layout.shapes.items()
    }
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": SCALE * rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {
        f"base_model.model.{name}.lora_{half}.weight": numbers
        for name, pair in factors.items()
        for half, numbers in zip("AB", pair, strict=True)
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return factors


@pytest.mark.parametrize("rank", [16, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_scaled_factors_are_rounded_once(
    stored: torch.dtype, dtype: torch.dtype, rank: int, llama: TinyModel, tmp_path: Path
) -> None:
    loras = HostLoras(llama.build(), most_rank=16, dtype=dtype, pinned=False)
    factors = write(tmp_path, loras, rank, stored)
    weights = loras[loras.read(str(tmp_path)).digest]
    wide = torch.promote_types(stored, torch.float32)
    for name, (a, b) in factors.items():
        place = loras.layout.places[name]
        found_a, found_b = weights.at(place.site)
        assert torch.equal(found_a[place.part, :rank], a.to(dtype))
        assert torch.equal(found_b[place.rows, :rank], (b.to(wide) * SCALE).to(dtype))
        assert not found_a[place.part, rank:].any()
        assert not found_b[place.rows, rank:].any()


class Calls:
    """Counts the calls that read from files."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self._read = 0, os.preadv
        patch.setattr(os, "preadv", self.preadv)

    def preadv(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.count += 1
        return self._read(handle, buffers, offset)


def test_many_layers_are_read_by_few_calls_and_kept_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(WIDE)
    with torch.device("meta"):
        model = PAGES[spec.architecture](spec)
    loras = HostLoras(model, most_rank=128, dtype=torch.bfloat16, pinned=False)
    num_bytes = sum(
        each.nbytes for pair in write(tmp_path, loras, 128, torch.bfloat16).values() for each in pair
    )
    calls = Calls(monkeypatch)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    facts = loras.read(str(tmp_path))
    assert facts.num_bytes == num_bytes
    assert 0.75 * num_bytes < peak() - before < 1.25 * num_bytes
    assert 8 < calls.count <= (num_bytes >> 22) + 1


def peak() -> int:
    """The most bytes of this process in memory since the kernel was told to forget it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_calls_that_read_less_than_all_go_on(
    tmp_path: Path, llama: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at an end of a signal's or a file system's making."""
    loras = HostLoras(llama.build(), most_rank=16, dtype=torch.float32, pinned=False)
    write(tmp_path, loras, 16, torch.float32)
    whole = loras.read(str(tmp_path))
    read = os.preadv

    def some(handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        sizes, left = list[memoryview](), 1000
        for each in buffers:
            sizes.append(each[:left])
            left -= len(sizes[-1])
        return read(handle, sizes, offset)

    monkeypatch.setattr(os, "preadv", some)
    assert loras.read(str(tmp_path)) == whole


def test_numbers_that_do_not_fit_the_models_dtype_are_refused_by_name(
    tmp_path: Path, llama: TinyModel
) -> None:
    loras = HostLoras(llama.build(), most_rank=16, dtype=torch.float16, pinned=False)
    name, (_, b) = list(write(tmp_path, loras, 16, torch.float32).items())[-1]
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"base_model.model.{name}.lora_B.weight"] = b.clone().index_fill_(0, torch.tensor([3]), 1e6)
    save_file(tensors, file)
    with pytest.raises(BadValueError, match=f"'{re.escape(name)}' hold a number that is not finite"):
        loras.read(str(tmp_path))
    assert not loras._weights
