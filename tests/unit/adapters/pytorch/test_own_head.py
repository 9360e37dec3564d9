"""A checkpoint whose config ties head and embedding, and that holds two different ones, is computed as transformers computes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch.weights.checkpoint import has_own_head
from nanoserve.ports.errors import ModelLoadError
from tests.unit.adapters.pytorch.test_splitting import logits, split
from tests.unit.adapters.pytorch.tiny_models import CASES, PagedRun, TinyModel, make_prompt, make_tiny_model

FAMILIES = ("gemma2", "gemma3", "gemma3_text", "granite", "llama", "mixtral", "qwen2", "qwen3", "qwen3_moe")
SPLIT: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131}


def with_own_head(folder: Path, family: str, **config: Any) -> TinyModel:
    """A tied model beside whose embedding a head of other values has been put."""
    tiny = make_tiny_model(folder, family, **{**CASES[family], **config, "tie_word_embeddings": True})
    tensors = load_file(folder / "model.safetensors")
    [name] = [each for each in tensors if each.endswith("embed_tokens.weight")]
    head = name.replace("model.embed_tokens", "lm_head")
    tensors[head] = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(1)) / 7
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tiny


def expected(tiny: TinyModel, prompt: list[int]) -> Tensor:
    loaded = type(tiny.reference).from_pretrained(tiny.folder, attn_implementation="eager").eval().float()
    with torch.inference_mode():
        logits: Tensor = loaded(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_the_file_counts_as_in_transformers(tmp_path: Path, family: str) -> None:
    tiny, prompt = with_own_head(tmp_path, family), make_prompt(11)
    assert tiny.spec.tied_embeddings
    model = tiny.build()
    assert not model.spec.tied_embeddings
    ours = torch.cat(PagedRun.start(model, [prompt]).step([11]))
    wanted = expected(tiny, prompt)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-3)
    assert (tiny.expected(prompt)["logits"] - wanted).abs().max() > 0.5  # the tied one would be seen


def test_split_over_ranks(tmp_path: Path) -> None:
    tiny = with_own_head(tmp_path, "llama", **SPLIT)
    prompts = [make_prompt(length, vocab_size=131, seed=length) for length in (13, 9)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(logits, split(tiny, 2), [prompts] * 2))
    torch.testing.assert_close(found[0], logits(tiny.build(), prompts), rtol=0, atol=1e-4)


def with_head_alone(folder: Path, family: str, **config: Any) -> TinyModel:
    """A tied model whose file has what both compute with under the name of the head."""
    tiny = make_tiny_model(folder, family, **{**CASES[family], **config, "tie_word_embeddings": True})
    tensors = load_file(folder / "model.safetensors")
    [name] = [each for each in tensors if each.endswith("embed_tokens.weight")]
    tensors[name.replace("model.embed_tokens", "lm_head")] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_without_an_embedding_is_both(tmp_path: Path, family: str) -> None:
    tiny, prompt = with_head_alone(tmp_path, family), make_prompt(11)
    model = tiny.build()
    assert model.spec.tied_embeddings
    ours = torch.cat(PagedRun.start(model, [prompt]).step([11]))
    wanted = expected(tiny, prompt)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-3)
    torch.testing.assert_close(wanted, tiny.expected(prompt)["logits"], rtol=0, atol=1e-3)


def test_a_head_alone_is_split_over_ranks(tmp_path: Path) -> None:
    tiny = with_head_alone(tmp_path, "llama", **SPLIT)
    prompts = [make_prompt(length, vocab_size=131, seed=length) for length in (13, 9)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(logits, split(tiny, 2), [prompts] * 2))
    torch.testing.assert_close(found[0], logits(tiny.build(), prompts), rtol=0, atol=1e-4)


def test_a_head_alone_of_another_shape_is_an_error(tmp_path: Path) -> None:
    tiny = with_head_alone(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(9, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"has shape \[9, 48\], but the config asks for \[128, 48\]"):
        tiny.build()


def test_rows_far_behind_the_first_are_compared(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "llama", tie_word_embeddings=True, vocab_size=5000)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert not has_own_head(str(tiny.folder))
    tensors["lm_head.weight"][4999, 47] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    assert has_own_head(str(tiny.folder))


def test_a_head_of_another_shape_is_an_error(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(9, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelLoadError, match=r"'lm_head.weight' has shape \[9, 48\], but the config asks for \[128, 48\]"
    ):
        tiny.build()
