"""What cannot be loaded from a GGUF file is refused in one line that names the file and what to do."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanoserve.adapters.gguf.conversion import convert
from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.gguf.gguf_files import TOKENIZER, write_gguf
from tests.unit.adapters.pytorch.tiny_models import CPU, TinyModel, make_tiny_model

Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)


def load(file: Path) -> None:
    folder = present_folder(str(file))
    build_model(read_spec(folder), folder, dtype=torch.float32, device=CPU)


def refusal(file: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        load(file)
    message = str(refused.value)
    assert file.name in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"general.architecture": "gemma3"}, ["architecture 'gemma3'", "known are: llama, qwen2, qwen3"]),
        ({"llama.block_count": None}, ["lacks llama.block_count", "convert"]),
        ({"llama.feed_forward_length": [80, 80]}, ["llama.feed_forward_length", "for all layers"]),
        ({"llama.expert_count": 8}, ["llama.expert_count = 8 is not supported"]),
        ({"llama.rope.scaling.type": "yarn"}, ["rope scaling 'yarn' is not supported"]),
        ({"llama.rope.dimension_count": 8}, ["llama.rope.dimension_count must be the size of a head, 16"]),
        ({"tokenizer.ggml.tokens": None}, ["has no tokenizer"]),
        ({"tokenizer.ggml.token_type": [1] * 5}, ["has no tokenizer, or part of one"]),
        ({"tokenizer.ggml.model": "bert"}, ["tokenizer 'bert' is not supported", "gpt2 and llama"]),
        ({"tokenizer.ggml.model": "llama"}, ["has no scores"]),
        (
            {"tokenizer.ggml.pre": "unheard-of"},
            ["tokenizer.ggml.pre 'unheard-of'", "llama-bpe", "safetensors"],
        ),
        ({"tokenizer.ggml.merges": ["t q"]}, ["its tokenizer is damaged", "`q`", "download it again"]),
        ({"tokenizer.ggml.pre": None}, ["tokenizer.ggml.pre None", "recent llama.cpp"]),
    ],
)
def test_what_the_metadata_ask_for(
    tmp_path: Path, tiny: TinyModel, change: dict[str, Any], parts: list[str]
) -> None:
    message = refusal(write_gguf(tmp_path / "m.gguf", tiny.reference, change=change))
    assert all(part in message for part in parts), message


def test_a_rule_that_the_tokenizer_class_of_an_architecture_would_replace(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "qwen2")
    message = refusal(write_gguf(tmp_path / "m.gguf", tiny.reference, tokenizer=TOKENIZER | {"pre": "gpt-2"}))
    assert "tokenizer.ggml.pre 'gpt-2' is not known for qwen2 (known are qwen2," in message


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ({"blk.0.ffn_up.weight": None}, ["lacks 1 tensors", "model.layers.0.mlp.up_proj.weight"]),
        ({"token_embd.weight": None}, ["no tensor 'token_embd.weight'", "download it again"]),
        (
            {"blk.0.ffn_up_exps.weight": np.ones((4, 4), np.float32)},
            ["'blk.0.ffn_up_exps.weight' has no place"],
        ),
        (
            {"blk.1.ffn_up.weight": np.ones((4, 4), np.float32)},
            ["'model.layers.1.mlp.up_proj.weight' has no place"],
        ),
        ({"blk.0.ffn_up.weight": np.ones((80, 47), np.float32)}, ["has shape [80, 47]", "asks for [80, 48]"]),
        ({"rope_freqs.weight": np.full(8, 2, np.float32)}, ["rope_freqs.weight is not Llama 3's"]),
        ({"rope_freqs.weight": np.full(7, 1, np.float32)}, ["rope_freqs.weight is not Llama 3's"]),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, tiny: TinyModel, tensors: dict[str, Any], parts: list[str]
) -> None:
    message = refusal(write_gguf(tmp_path / "m.gguf", tiny.reference, tensors=tensors))
    assert all(part in message for part in parts), message


def recode(code: int) -> Edit:
    """Another kind of storage for the first norm, whose name and shape stand before the kind."""
    before = b"blk.0.attn_norm.weight" + struct.pack("<IQ", 1, 48)

    def edit(content: bytes) -> bytes:
        assert content.count(before) == 1
        end = content.index(before) + len(before)
        return content[:end] + struct.pack("<I", code) + content[end + 4 :]

    return edit


@pytest.mark.parametrize(
    ("edit", "parts"),
    {
        "empty": (lambda content: b"", ["damaged or cut short", "download it again"]),
        "another format": (lambda content: b"PK" + content[2:], ["is not a GGUF file"]),
        "version 1": (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], ["GGUF version 1"]),
        "big-endian": (lambda content: content[:4] + struct.pack(">I", 3) + content[8:], ["big-endian"]),
        "cut in the header": (lambda content: content[:400], ["damaged or cut short", "download it again"]),
        "cut in the data": (lambda content: content[:-4000], ["is cut short: tensor", "download it again"]),
        "a wild count": (lambda content: content[:8] + b"\xff" * 8 + content[16:], ["damaged or cut short"]),
        "wild keys": (lambda content: content[:16] + b"\xff" * 8 + content[24:], ["damaged or cut short"]),
        "an unknown kind": (recode(200), ["'blk.0.attn_norm.weight' is stored as kind 200", "Q8_0"]),
        "integers": (recode(26), ["is stored as I32, which is not known"]),
        "blocks in a row too short": (recode(2), ["has rows of 1, which Q4_0 cannot store"]),
    }.values(),
)
def test_files_that_are_damaged_or_of_another_kind(
    tmp_path: Path, tiny: TinyModel, edit: Edit, parts: list[str]
) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny.reference)
    file.write_bytes(edit(file.read_bytes()))
    message = refusal(file)
    assert all(part in message for part in parts), message


def test_every_way_to_cut_a_file_short_is_refused(tmp_path: Path, tiny: TinyModel) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny.reference)
    content = file.read_bytes()
    for length in range(0, len(content), len(content) // 60):
        file.write_bytes(content[:length])
        assert "download it again" in refusal(file)


def test_wrong_bytes_in_a_header_are_refused_or_harmless(tmp_path: Path, tiny: TinyModel) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny.reference, change={"general.alignment": 32})
    content, draw = file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        place = draw.randrange(24, content.index(b"output_norm.weight"))
        changed[place : place + 4] = draw.randbytes(draw.randint(1, 4)).ljust(4, b"\0")
        file.write_bytes(changed)
        try:
            convert(file)
        except ModelLoadError:
            refused += 1
    assert refused > 30


def test_a_file_that_is_gone_or_a_cache_that_cannot_be_written(
    tmp_path: Path, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny.reference)
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert "XDG_CACHE_HOME a folder that can be written" in refusal(file)
