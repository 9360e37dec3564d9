"""A model from a GGUF file is the model that was written into it, in every architecture and every kind of storage."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.gguf import dequant

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.generation_config import read_sampling_defaults
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.weights import gguf_file
from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint
from nanoserve.kernels.forms import FORMS, StoredWeight
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import Llama3RopeScaling
from tests.unit.adapters.gguf.gguf_files import TOKENIZER, write_gguf
from tests.unit.adapters.pytorch.tiny_models import CPU, PagedRun, TinyModel, make_prompt, make_tiny_model

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama with biases": {"architecture": "llama", "attention_bias": True, "mlp_bias": True},
    "tied llama": {"architecture": "llama", "tie_word_embeddings": True},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "tie_word_embeddings": True},
}
NOT_QUANTIZED_BY_TESTS = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"}
KINDS = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *sorted(NOT_QUANTIZED_BY_TESTS))


def logits(folder: str, **changes: Any) -> Tensor:
    model = build_model(attrs.evolve(read_spec(folder), **changes), folder, dtype=torch.float32, device=CPU)
    return PagedRun.start(model, [make_prompt(11)]).step([11])[0]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_spec_and_logits_are_those_of_the_model_that_was_written(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    tiny = make_tiny_model(tmp_path, **model)
    folder = present_folder(str(write_gguf(tmp_path / "tiny.gguf", tiny.reference)))
    found = read_spec(folder)
    assert found.norm.eps == pytest.approx(tiny.spec.norm.eps)
    expected = read_spec(str(tmp_path))
    assert attrs.evolve(found, norm=expected.norm) == attrs.evolve(expected, eos_token_ids=(3,))
    assert torch.equal(logits(folder, norm=tiny.spec.norm), logits(str(tmp_path)))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_transformers_reads_the_same_model_from_the_file(tmp_path: Path, model: dict[str, Any]) -> None:
    tiny = make_tiny_model(tmp_path, **model)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference, kind="F16")
    folder = present_folder(str(file))
    config = AutoConfig.from_pretrained(folder)
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, config=config, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    expected = attrs.evolve(tiny, reference=theirs.eval()).expected(make_prompt(11))["logits"]
    torch.testing.assert_close(logits(folder), expected, rtol=0, atol=1e-4)


def test_rope_factors_are_llama_3s_scaling(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    scaling = Llama3RopeScaling(factor=32, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference, tensors={"rope_freqs.weight": llama3_factors()})
    ((rope, size),) = tiny.spec.rotations
    assert read_spec(present_folder(str(file))).rotations == ((attrs.evolve(rope, scaling=scaling), size),)


def llama3_factors() -> np.ndarray:
    """As llama.cpp's converter computes them for a model of 16 dimensions a head, and a factor of 32."""
    factors = []
    for place in range(8):
        wavelength = 2 * math.pi * 10_000.0 ** (2 * place / 16)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(32.0)
        else:
            factors.append(1 / ((1 - smooth) / 32 + smooth))
    assert len(set(factors)) == 3
    return np.array(factors, np.float32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """With rows as long as the largest blocks."""
    folder = tmp_path_factory.mktemp("wide")
    return make_tiny_model(folder, hidden_size=256, head_dim=64, intermediate_size=256, num_hidden_layers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_storage_is_dequantized(
    tmp_path: Path, wide: TinyModel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "PIECE", 5 * 256)
    file = write_gguf(tmp_path / "wide.gguf", wide.reference, kind=kind)
    (stored,) = (each for each in GGUFReader(file).tensors if each.name == "blk.0.ffn_down.weight")
    assert stored.tensor_type.name == kind
    folder = present_folder(str(file))
    destinations = {name: torch.zeros(value.shape) for name, value in wide.reference.state_dict().items()}
    load_checkpoint(folder, Destinations(destinations))
    found = destinations["model.layers.0.mlp.down_proj.weight"]
    torch.testing.assert_close(found, values(stored.data, stored.tensor_type), rtol=1e-5, atol=1e-6)
    if kind not in NOT_QUANTIZED_BY_TESTS:
        original = wide.reference.state_dict()["model.layers.0.mlp.down_proj.weight"]
        assert (found - original).abs().max() < 0.03
    assert read_spec(folder).dtype == ("float16" if kind == "F16" else "bfloat16")


def values(packed: np.ndarray, kind: GGMLQuantizationType) -> Tensor:
    """What transformers' own implementation, which is another, dequantizes to."""
    raw = torch.from_numpy(np.array(packed)).flatten()
    if kind == GGMLQuantizationType.F16:
        return raw.float().view(256, 256)
    if kind == GGMLQuantizationType.BF16:
        return raw.view(torch.bfloat16).float().view(256, 256)
    if kind not in dequant.GGML_BLOCK:
        return blocks_of_five_bits(raw.view(-1, 22 if kind == GGMLQuantizationType.Q5_0 else 24)).view(
            256, 256
        )
    plain: Tensor = dequant.dequantize(raw, int(kind))
    return plain.view(256, 256)


def blocks_of_five_bits(blocks: Tensor) -> Tensor:
    """Q5_0 and Q5_1: a scale, perhaps a minimum, 32 high bits, 32 low nibbles."""
    head = blocks.shape[1] - 20
    halves = blocks[:, :head].contiguous().view(torch.float16).float()
    high = torch.stack([(blocks[:, head + place // 8] >> (place % 8)) & 1 for place in range(32)], dim=1)
    nibbles = blocks[:, head + 4 :]
    levels = torch.cat([nibbles & 15, nibbles >> 4], dim=1).int() + 16 * high.int()
    return halves[:, :1] * (levels - 16) if head == 2 else halves[:, :1] * levels + halves[:, 1:]


def test_weights_come_in_the_dtype_of_the_model(tmp_path: Path, wide: TinyModel) -> None:
    folder = present_folder(str(write_gguf(tmp_path / "wide.gguf", wide.reference, kind="Q8_0")))
    shapes = {name: value.shape for name, value in wide.reference.state_dict().items()}
    low, full = (
        {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
        for dtype in (torch.bfloat16, torch.float32)
    )
    load_checkpoint(folder, Destinations(low))
    load_checkpoint(folder, Destinations(full))
    assert all(torch.equal(low[name], full[name].bfloat16()) for name in shapes)


def test_recommended_sampling_values_are_defaults(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    change = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    folder = present_folder(str(write_gguf(tmp_path / "tiny.gguf", tiny.reference, change=change)))
    assert read_sampling_defaults(folder).values == {"temperature": 0.5, "top_k": 7}


def test_a_folder_is_written_once_for_a_file_and_again_where_it_is_torn_or_the_file_is_another(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_tiny_model(tmp_path)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference)
    folder = Path(present_folder(str(file)))
    whole = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert folder.is_relative_to(cache)
    assert (folder / "model.gguf").is_symlink()
    with monkeypatch.context() as patched:
        patched.setattr("nanoserve.adapters.gguf.conversion.read_header", None)
        assert present_folder(str(file)) == str(folder)
        assert present_folder(str(folder / "model.gguf")) == str(folder)
    for name in whole:
        (folder / name).unlink()
        assert present_folder(str(file)) == str(folder)
        if not (folder / name).is_symlink():
            (folder / name).write_bytes(whole[name][:10])
        assert present_folder(str(file)) == str(folder)
        assert {each.name: each.read_bytes() for each in folder.iterdir()} == whole, name
    write_gguf(file, tiny.reference, tokenizer=TOKENIZER | {"eos_token_id": 9})
    assert present_folder(str(file)) != str(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_s_head_is_put_into_a_form(tmp_path: Path, *, tied: bool) -> None:
    tiny = make_tiny_model(tmp_path, hidden_size=256, intermediate_size=256, tie_word_embeddings=tied)
    folder = present_folder(str(write_gguf(tmp_path / "tiny.gguf", tiny.reference, kind="Q4_0")))
    how: dict[str, Any] = {"dtype": torch.float32, "device": CPU, "keep": True}
    plain = build_model(read_spec(folder), folder, **how)
    narrow = build_model(read_spec(folder), folder, **how, quantize_head="int8")
    wanted = StoredWeight(FORMS["int8"], *FORMS["int8"].quantize(plain.head.weight.float())).float()
    assert torch.equal(narrow.head.matrix.float(), wanted)
    assert torch.equal(narrow.embedding.weight, plain.embedding.weight)


def test_a_file_cut_short_while_it_is_read_is_named(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    file = write_gguf(tmp_path / "tiny.gguf", tiny.reference)
    folder = present_folder(str(file))
    file.write_bytes(file.read_bytes()[:-4000])
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf: has been cut short within tensor"):
        build_model(read_spec(folder), folder, dtype=torch.float32, device=CPU)


def test_all_tensors_are_checked_before_one_is_read(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    folder = present_folder(str(write_gguf(tmp_path / "tiny.gguf", tiny.reference)))
    index = Path(folder) / "model.gguf.index.json"
    assert json.loads(index.read_text())["tensors"]["model.layers.0.self_attn.k_proj.weight"]["heads"] == 2
    destinations = {name: torch.zeros(value.shape) for name, value in tiny.reference.state_dict().items()}
    destinations["model.norm.weight"] = torch.zeros(7)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight' has shape \[48\].*asks for \[7\]"):
        load_checkpoint(folder, Destinations(destinations))
    assert not any(tensor.any() for tensor in destinations.values())
