"""Adapters on the GPU's runner: rows of different ones and of none equal PEFT's merged weights, whoever their neighbours are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from nanoserve.adapters.pytorch.cuda import building, mixed_steps
from nanoserve.adapters.pytorch.cuda.low_rank import DeviceLoras
from nanoserve.adapters.pytorch.cuda.mixed_steps import Shape
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.replays import KeptLaunches, NotedReplays
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.interpreter.matrix import cases
from tests.served import Answer, Served, assert_scored_as_by, is_greedy
from tests.unit.adapters.pytorch.lora.peft_adapters import LINEARS, make_adapter
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

RANKS = {"a": 8, "b": 17}
SIZES: dict[str, Any] = {"max_loras": 2, "max_lora_rank": 32, "max_num_seqs": 6, "depth": 2}
NUM_PROMPTS = 12 if ON_GPU else 5
TARGETS = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen3_moe": LINEARS[:4],
    "gpt_oss": LINEARS[:4],
    "deepseek_v3": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
}

# Releases of transformers before the limit was a field have this one.
LIMITS = {"gpt_oss": {"swiglu_limit": 7.0}}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have tests of their own: to compile what a start checks takes longer than these."""
    for name in ("rehearse_checks", "check_kernels"):
        monkeypatch.setattr(building, name, lambda _bench: None)


def scored(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=1)


def serve_adapters(tiny: TinyModel, folder: Path, **settings: Any) -> Served:
    return named(serve(tiny.build(device=DEVICE), **(SIZES | settings)), folder)


def named(served: Served, folder: Path) -> Served:
    for name in RANKS:
        served.engine.name_lora(name, served.engine.read_lora(str(folder / name)))
    return served


@cases("family", ["llama", "gemma2"], also=["qwen2", "phi3", "olmo2", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_rows_of_different_adapters_and_none_share_steps(family: str, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "base", family, **(CASES[family] | LIMITS.get(family, {})))
    targets = TARGETS.get(family, LINEARS)
    merged = {
        name: make_adapter(tiny, tmp_path / name, rank=rank, seed=rank, targets=targets)
        for name, rank in RANKS.items()
    }
    merged[""] = tiny.reference
    served = serve_adapters(tiny, tmp_path)
    names = [("a", "b", "")[number % 3] for number in range(NUM_PROMPTS)]
    prompts = [make_prompt(3 + 5 * (number % 30), seed=number) for number in range(NUM_PROMPTS)]
    answers = served.answers(prompts, [scored(4)] * NUM_PROMPTS, loras=names)
    for name, prompt, answer in zip(names, prompts, answers, strict=True):
        assert is_greedy(merged[name], prompt, answer.tokens)
        assert_scored_as_by(merged[name], prompt, answer, 1)


@pytest.fixture
def llama(tmp_path: Path) -> TinyModel:
    tiny = make_tiny_model(tmp_path / "base", num_hidden_layers=2)
    for name, rank in RANKS.items():
        make_adapter(tiny, tmp_path / name, rank=rank, seed=rank)
    return tiny


def test_a_deterministic_answer_has_the_bits_it_has_alone(llama: TinyModel, tmp_path: Path) -> None:
    prompts, names = [make_prompt(4 + 9 * number, seed=number) for number in range(4)], ["a", "b", "", "a"]
    settings = {"deterministic": True, "max_num_batched_tokens": 16}
    together = serve_adapters(llama, tmp_path, **settings).answers(prompts, [scored(3)] * 4, loras=names)
    alone = serve_adapters(llama, tmp_path, **settings)
    for number in (1, 3):
        (answer,) = alone.answers([prompts[number]], [scored(3)], loras=[names[number]])
        assert attrs.asdict(answer) == attrs.asdict(together[number])


def test_steps_without_adapters_launch_nothing_of_them(
    llama: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_adapters(llama, tmp_path)
    prompts, params = [make_prompt(9, seed=1), make_prompt(5, seed=2)], [scored(3)] * 2
    launched = []

    def note(*arguments: Any, **_: Any) -> None:
        launched.append(arguments)

    monkeypatch.setattr(DeviceLoras, "_shrink", note)
    served.answers(prompts, params)
    assert not launched
    served.answers(prompts, params, loras=["", "a"])
    assert launched or ON_GPU  # a graph was captured before


@pytest.mark.parametrize("crowds", [(), ((8, 64),)])
def test_one_capture_serves_prompts_whichever_tokens_have_which_adapter(
    crowds: tuple[tuple[int, int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside rows that decode, with and without adapters; captured before serving, no step launches its kernels one by one."""
    monkeypatch.setattr(mixed_steps, "CROWDS", crowds)
    tiny = make_tiny_model(tmp_path / "base", num_hidden_layers=2)
    merged = {name: make_adapter(tiny, tmp_path / name, rank=rank, seed=rank) for name, rank in RANKS.items()}
    merged[""], runners = tiny.reference, list[CudaRunner]()
    graphs = NotedReplays() if ON_GPU else KeptLaunches()

    def make_runner(limits: Limits) -> CudaRunner:
        runners.append(building.build_runner(tiny.build(device=DEVICE), limits, graphs=graphs)[0])
        if not ON_GPU:
            runners[0]._mixed_steps.capture_first(runners[0].rehearsal._launcher)
        graphs.replayed.clear()
        return runners[0]

    sizes = SIZES | {"max_num_seqs": 10, "max_num_batched_tokens": 72}
    served = named(Served(tiny.build(device=DEVICE), make_runner, **sizes), tmp_path)
    for seed, names in enumerate([("a", "b", ""), ("b", "", "a")]):
        prompts = [make_prompt(length, seed=10 * seed + length) for length in (40, 31, 56)]
        answers = {name: Answer() for name in "012"}
        for number, (prompt, lora) in enumerate(zip(prompts, names, strict=True)):
            sampling = SamplingParams(temperature=0.0, max_tokens=9 - 3 * number)
            served.add(str(number), prompt, sampling, 0, lora=lora)
            for _ in range(3):
                served.turn(answers)
        while served.engine.has_work:
            served.turn(answers)
        for name, prompt, answer in zip(names, prompts, answers.values(), strict=True):
            assert answer.finish_reason
            assert is_greedy(merged[name], prompt, answer.tokens)
    mixed = [key for key in graphs.replayed if isinstance(key, Shape)]
    assert all(each.adapted for each in mixed)
    assert any(each.places for each in mixed)
    assert len(mixed) == (6 if crowds else 6 - len({*mixed}))
    assert runners[0].graph_steps["eager"] == 6 - len(mixed)
