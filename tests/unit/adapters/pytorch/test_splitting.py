"""The parts of a split model compute what the whole model does, whatever its checkpoint has fused; ranks are threads here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.adapters.pytorch.models import PAGES, DecoderModel, build_model
from nanoserve.ports.errors import BadValueError, ModelLoadError
from tests.unit.adapters.pytorch.tiny_models import (
    CASES,
    CPU,
    GRANITE,
    LATENT,
    PagedRun,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

REFUSED = {
    "minimax_m2": "norms the queries of all heads together",
    "olmo2": "norms the queries of all heads together",
    "olmoe": "norms the queries of all heads together",
}
ODD: dict[str, Any] = {
    "num_key_value_heads": 4,
    "vocab_size": 131,
    "attention_bias": True,
    "mlp_bias": True,
}
"""For four ranks: a head for each, a vocabulary that they cannot share evenly, and biases that one of them has to add."""
FOUR_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
EVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_key_value_heads": None},
    "deepseek_v3": {"num_key_value_heads": None},
    "qwen3_next": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
}
"""What of a family must be divided beside its attention heads."""
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    **{
        family: (family, {**config, **FOUR_HEADS, **EVEN.get(family, {})}, 2)
        for family, config in CASES.items()
        if family not in REFUSED
    },
    "queries projected at once": (
        "deepseek_v2",
        {**LATENT, **FOUR_HEADS, **EVEN["deepseek_v2"], "q_lora_rank": None, "attention_bias": True},
        4,
    ),
    "odd": ("llama", ODD, 4),
    "odd-tied": ("granite", {**GRANITE, **ODD, "tie_word_embeddings": True}, 4),
    "fewer-ids-than-ranks-want": ("llama", {**ODD, "vocab_size": 9}, 4),
}


@attrs.define(eq=False)
class ThreadRanks:
    """One rank among threads."""

    rank: int
    size: int
    board: list[Tensor | None]
    barrier: threading.Barrier

    def all_gather(self, x: Tensor, /) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def all_reduce(self, x: Tensor, /) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.board[self.rank] = x
        self.barrier.wait(60)
        found = [each for each in self.board if each is not None]
        self.barrier.wait(60)
        return found


def split(tiny: TinyModel, size: int, quantization: str | None = None) -> list[DecoderModel]:
    board: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)
    return [
        build_model(
            tiny.spec,
            str(tiny.folder),
            dtype=torch.float32,
            device=CPU,
            quantization=quantization,
            ranks=ThreadRanks(rank, size, board, barrier),
        )
        for rank in range(size)
    ]


def logits(model: DecoderModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Of two prompts, the first one in two chunks."""
    run = PagedRun.start(model, [list(each) for each in prompts])
    return torch.cat([*run.step([5, len(prompts[1])]), *run.step([len(prompts[0]) - 5, 0])])


def test_every_family_is_split_or_refused() -> None:
    assert {*REFUSED, *(family for family, _, _ in MODELS.values())} >= set(PAGES) - {"kimi_k2"}


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_add_up_to_the_whole(name: str, tmp_path: Path) -> None:
    family, config, size = MODELS[name]
    tiny = make_tiny_model(tmp_path, family, **config)
    prompts = [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in (13, 9)]
    whole = logits(tiny.build(), prompts)
    parts = split(tiny, size)
    for tensor in parts[-1].parameters():
        assert tensor.isfinite().all()
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(logits, parts, [prompts] * size))
    torch.testing.assert_close(found[0], whole, rtol=0, atol=2e-5 * max(1.0, whole.abs().max().item()))
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("family", ["granitemoe", "mixtral", "qwen3_moe"])
def test_stacks_are_split_as_what_they_stand_for(family: str, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, family, **MODELS[family][1])
    parts = [model.state_dict() for model in split(tiny, 2)]
    names = load_file(tmp_path / "model.safetensors").keys()
    tiny.reference.save_pretrained(tmp_path, save_original_format=False)
    assert load_file(tmp_path / "model.safetensors").keys() != names
    for part, model in zip(parts, split(tiny, 2), strict=True):
        assert all(torch.equal(tensor, part[name]) for name, tensor in model.state_dict().items())


def test_a_rank_holds_its_part_alone(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    whole, part = (
        sum(each.numel() for each in model.parameters()) for model in (tiny.build(), split(tiny, 2)[1])
    )
    vectors = tiny.spec.hidden_size * (tiny.spec.vocab_size + 2 * tiny.spec.num_layers + 1)
    assert part == vectors + (whole - vectors) // 2


@pytest.mark.parametrize(
    ("family", "config", "size", "message"),
    [
        *((family, CASES[family], 2, words) for family, words in REFUSED.items()),
        ("llama", {}, 4, "must divide the 2 KV heads of llama, got 4"),
        ("llama", {"intermediate_size": 81}, 2, "must divide the 81 elements of the feeds of llama, got 2"),
    ],
)
def test_what_cannot_be_split_is_refused(
    family: str, config: dict[str, Any], size: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadValueError, match=f"tensor_parallel_size: .*{message}"):
        split(make_tiny_model(tmp_path, family, **config), size)


def test_stored_forms_and_tensors_of_another_shape_are_refused(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    with pytest.raises(BadValueError, match="quantization: int8 weights cannot be split over ranks yet"):
        split(tiny, 2, quantization="int8")
    file, name = tmp_path / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, file)
    with pytest.raises(
        ModelLoadError, match=r"float8_e4m3fn .* cannot be split over ranks yet: leave tensor_par"
    ):
        split(tiny, 2)
    save_file({**tensors, name: tensors[name][:32]}, file)
    with pytest.raises(ModelLoadError, match=r"has shape \[32, 48\], but the config asks for \[64, 48\]"):
        split(tiny, 2)
