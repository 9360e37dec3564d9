"""Adapters are computed beside the base's products, and must give what PEFT's merged weights give in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.lora.deltas import Deltas
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.ports.sampling import SamplingParams
from tests.served import Served, assert_scored_as_by, is_greedy
from tests.unit.adapters.pytorch.lora.peft_adapters import LINEARS, make_adapter
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": LINEARS,
    "qwen2": LINEARS,
    "qwen3": LINEARS,
    "gemma3_text": LINEARS,
    "olmo2": LINEARS,
    "granite": LINEARS,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen3_moe": LINEARS[:4],
    "gpt_oss": LINEARS[:4],
    "qwen3_next": (*LINEARS[:4], "in_proj_qkvz", "in_proj_ba", "out_proj"),
    "deepseek_v3": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
}
"""Of families whose layers differ, the linear layers that can be adapted."""


def stores(model: Any) -> HostLoras:
    return HostLoras(model, most_rank=128, dtype=torch.float32, pinned=False)


def logits_with(model: Any, loras: HostLoras, digest: bytes, prompt: list[int]) -> torch.Tensor:
    """Ours of one prompt with one adapter."""
    inputs = StepInputs.of_prompt(prompt, block_size=4, num_groups=len(model.spec.cache_groups))
    kv = KVStore(model.spec, num_blocks=40, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    deltas = Deltas(loras, [(torch.arange(len(prompt)), loras[digest])])
    with torch.inference_mode():
        hidden = model(inputs, kv, low_rank=deltas)
        logits: torch.Tensor = model.logits(hidden)
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_merged_weights_do(family: str, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "base", family, **CASES[family])
    merged = make_adapter(tiny, tmp_path / "adapter", rank=6, targets=FAMILIES[family])
    model, prompt = tiny.build(), make_prompt(23, seed=3)
    loras = stores(model)
    ours = logits_with(model, loras, loras.read(str(tmp_path / "adapter")).digest, prompt)
    with torch.inference_mode():
        expected = merged(torch.tensor([prompt]), use_cache=False).logits[0]
        base = tiny.reference(torch.tensor([prompt]), use_cache=False).logits[0]
    assert (base - expected).abs().max() > 0.1
    assert (ours.log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("rank", "config"),
    [
        (1, {}),
        (8, {"use_rslora": True}),
        (128, {"lora_alpha": 16}),
        (8, {"rank_pattern": {"q_proj": 3, r"layers\.1\..*": 17}, "alpha_pattern": {"up_proj": 5}}),
        (8, {"targets": ("q_proj", "v_proj")}),
        (4, {"targets": ("down_proj",), "layers_to_transform": [1]}),
    ],
)
def test_scales_ranks_and_parts_are_those_of_peft(
    rank: int, config: dict[str, Any], tmp_path: Path, llama: TinyModel
) -> None:
    merged = make_adapter(llama, tmp_path, rank=rank, **config)
    model, prompt = llama.build(), make_prompt(17, seed=5)
    loras = stores(model)
    ours = logits_with(model, loras, loras.read(str(tmp_path)).digest, prompt)
    with torch.inference_mode():
        expected = merged(torch.tensor([prompt]), use_cache=False).logits[0]
    assert (ours.log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 1e-4


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("slots", [4, 2])
def test_rows_of_different_adapters_and_none_share_steps(
    slots: int, tmp_path: Path, llama: TinyModel
) -> None:
    """100 prompts, four adapters of ranks 8 to 64 mixed with none; with fewer slots than adapters they take turns."""
    ranks = {"a": 8, "b": 16, "c": 33, "d": 64}
    merged = {
        name: make_adapter(llama, tmp_path / name, rank=rank, seed=rank) for name, rank in ranks.items()
    }
    merged[""] = llama.reference
    served = Served(
        llama.build(), lambda limits: TorchRunner(llama.build(), limits), max_loras=slots, max_lora_rank=64
    )
    for name in ranks:
        served.engine.name_lora(name, served.engine.read_lora(str(tmp_path / name)))
    names = [("", *ranks)[number % 5] for number in range(100)]
    prompts = [make_prompt(3 + number % 29, seed=number) for number in range(100)]
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2)
    answers = served.answers(prompts, [params] * 100, loras=names)
    for name, prompt, answer in zip(names, prompts, answers, strict=True):
        assert is_greedy(merged[name], prompt, answer.tokens)
        assert_scored_as_by(merged[name], prompt, answer, 2)
    loads = served.engine.scheduler.table.loras.loads
    assert loads == 4 if slots == 4 else loads > 4


def test_a_name_with_new_numbers_finds_no_block_of_the_old_ones(tmp_path: Path, llama: TinyModel) -> None:
    merged = [make_adapter(llama, tmp_path / str(seed), seed=seed) for seed in range(2)]
    served = Served(
        llama.build(), lambda limits: TorchRunner(llama.build(), limits), max_loras=1, max_lora_rank=8
    )
    engine, prompt = served.engine, make_prompt(50, seed=1)
    params = [SamplingParams(temperature=0.0, max_tokens=4)]
    for seed, reference in [(0, merged[0]), (1, merged[1]), (0, merged[0])]:
        engine.name_lora("policy", engine.read_lora(str(tmp_path / str(seed))))
        (answer,) = served.answers([prompt], params, loras=["policy"])
        assert is_greedy(reference, prompt, answer.tokens)
    # The third time the numbers are the first ones again, whose blocks are still right.
    assert engine.state().prefix_hits == 48
    (answer,) = served.answers([prompt], params)
    assert is_greedy(llama.reference, prompt, answer.tokens)
    assert engine.state().prefix_hits == 48


def test_an_answer_has_the_bits_it_has_alone(tmp_path: Path, llama: TinyModel) -> None:
    """Whatever adapters its neighbours have."""
    for seed, name in enumerate("ab"):
        make_adapter(llama, tmp_path / name, rank=8 + 8 * seed, seed=seed)

    def serve(prompts: list[list[int]], loras: list[str]) -> list[Any]:
        model = llama.build()
        model.is_invariant = True
        served = Served(model, lambda limits: TorchRunner(model, limits), max_loras=2, max_lora_rank=16)
        for name in "ab":
            served.engine.name_lora(name, served.engine.read_lora(str(tmp_path / name)))
        return served.answers(
            prompts, [SamplingParams(temperature=0.0, max_tokens=8, logprobs=1)] * len(prompts), loras=loras
        )

    prompts = [make_prompt(7 + 5 * number, seed=number) for number in range(9)]
    loras = ["a", "b", ""] * 3
    together = serve(prompts, loras)
    for number in (0, 1, 4, 8):
        (alone,) = serve([prompts[number]], [loras[number]])
        assert attrs.asdict(alone) == attrs.asdict(together[number])
