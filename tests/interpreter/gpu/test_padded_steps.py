"""Small steps with chunks are padded and captured: replays of one capture serve all steps of its size, with the same tokens."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.cuda import mixed_steps
from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Key
from nanoserve.adapters.pytorch.cuda.mixed_steps import Shape
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.replays import KeptLaunches
from tests.interpreter.gpu.serving import DEVICE, ON_GPU
from tests.process.encoder_models import make_encoder
from tests.served import Served, is_greedy
from tests.unit.adapters.pytorch.tiny_models import GEMMA3, TinyModel, make_prompt, make_tiny_model

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("gemma3_text", {**GEMMA3, "head_dim": 24}),
    ("qwen3_moe", {}),
]


@pytest.fixture(
    params=FAMILIES if ON_GPU else FAMILIES[:1],
    ids=lambda each: each[0],
)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, config = request.param
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config)


def test_replayed_steps_with_chunks_give_the_tokens_of_transformers(tiny: TinyModel) -> None:
    graphs = KeptLaunches()

    def make_runner(limits: Limits) -> CudaRunner:
        return build_runner(tiny.build(device=DEVICE), limits, graphs=graphs)[0]

    sizes: dict[str, Any] = {
        "num_blocks": 24,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 136,
        "max_model_len": 64,
    }
    served = Served(tiny.build(device=DEVICE), make_runner, depth=2, **sizes)
    # A round is 136 tokens, then 24 beside two rows that decode. What occurs once is not captured.
    for seed in range(5):
        penalty = 1.0 if seed < 3 else 1.0 + 1e-9
        how: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": penalty}
        sampling = [SamplingParams(**how, max_tokens=count) for count in (3, 2, 2)]
        prompts = [
            make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=100 * seed + length)
            for length in (60, 58, 42)
        ]
        for prompt, answer in zip(prompts, served.texts(prompts, sampling), strict=True):
            assert is_greedy(tiny.reference, prompt, answer)
    mixed = [key for key in graphs.replayed if isinstance(key, Shape)]
    assert len(mixed) > len(set(mixed))
    assert any(shape.places for shape in mixed)
    assert {shape.width for shape in mixed} == {0, None}, "rows whose logits are shaped first are drawn apart"


def test_steps_of_prompts_beside_a_crowd_are_captured_before_they_come(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_steps, "CROWDS", ((8, 60), (64, 60)))
    graphs, layers, mixed = KeptLaunches(), list[int](), ForwardLauncher.mixed

    def launch(launcher: ForwardLauncher, step: ChunkStep, count: int, **how: Any) -> torch.Tensor:
        if step.num_tokens + count == 64 + 8:
            layers.append(len(launcher._layers))
        return mixed(launcher, step, count, **how)

    def make_runner(limits: Limits) -> CudaRunner:
        runner = build_runner(tiny.build(device=DEVICE), limits, graphs=graphs)[0]
        monkeypatch.setattr(ForwardLauncher, "mixed", launch)
        graphs.replayed.clear()  # of a GPU's own preparation
        for _ in range(2):  # again without graphs, where kernels are loaded
            graphs.drop()
            runner.rehearsal.prepare()
        return runner

    sizes: dict[str, Any] = {
        "num_blocks": 24,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 72,
        "max_model_len": 64,
    }
    served = Served(tiny.build(device=DEVICE), make_runner, depth=2, **sizes)
    whole = len(tiny.spec.layers)
    assert layers == 2 * [len({*tiny.spec.layers}), whole], (
        "few layers load the kernels, and no graph is of few"
    )
    assert [key[:4] for key in graphs.replayed if isinstance(key, Shape)] == 2 * [(64, 8, 16, 16)]
    prompts = [make_prompt(each, vocab_size=tiny.spec.vocab_size, seed=each) for each in (40, 52, 20)]
    sampling = [SamplingParams(temperature=0.0, max_tokens=each) for each in (5, 3, 3)]
    for prompt, answer in zip(prompts, served.texts(prompts, sampling), strict=True):
        assert is_greedy(tiny.reference, prompt, answer)
    _, _, *later = [key for key in graphs.replayed if isinstance(key, Shape)]
    assert later
    assert {key[:4] for key in later} == {(64, 8, 16, 16)}
    decoded = {key.places for key in graphs.replayed if isinstance(key, Key)}
    assert 8 in decoded, "three rows replay the graph of eight, which is there"
    assert decoded <= {1, 2, 8, 16}


def test_a_graph_that_stands_in_decodes_no_row_that_has_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are others'. The graph has as many places as there are rows: beside none of them, prompts still have all their tokens."""
    tiny = make_tiny_model(tmp_path, num_hidden_layers=2)
    monkeypatch.setattr(mixed_steps, "CROWDS", ((8, 60),))
    graphs = KeptLaunches()

    def make_runner(limits: Limits) -> CudaRunner:
        runner = build_runner(tiny.build(device=DEVICE), limits, graphs=graphs)[0]
        graphs.drop()
        runner.rehearsal.prepare()
        return runner

    sizes: dict[str, Any] = {
        "num_blocks": 12,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 72,
        "max_model_len": 64,
    }
    served = Served(tiny.build(device=DEVICE), make_runner, depth=2, **sizes)
    for lengths, counts in (((20, 22, 21), (2, 3, 5)), ((48,), (16,)), ((20, 22, 20), (2, 2, 2))):
        prompts = [make_prompt(each, vocab_size=tiny.spec.vocab_size, seed=each) for each in lengths]
        sampling = [SamplingParams(temperature=0.0, max_tokens=each) for each in counts]
        for prompt, answer in zip(prompts, served.texts(prompts, sampling), strict=True):
            assert is_greedy(tiny.reference, prompt, answer)
    shapes = [key[:4] for key in graphs.replayed if isinstance(key, Shape)]
    assert shapes[-3:] == 3 * [(64, 8, 8, 8)]


def test_rows_of_a_size_that_comes_for_a_moment_replay_the_graph_of_a_larger_one(tiny: TinyModel) -> None:
    graphs = KeptLaunches()

    def make_runner(limits: Limits) -> CudaRunner:
        runner = build_runner(tiny.build(device=DEVICE), limits, graphs=graphs)[0]
        runner._decoding.keys.stand_ins.owners.clear()  # those of a GPU's own preparation
        return runner

    sizes: dict[str, Any] = {
        "num_blocks": 24,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
    }
    served = Served(tiny.build(device=DEVICE), make_runner, depth=2, **sizes)
    lengths, counts = (20, 23, 21), (7, 4, 2)
    prompts = [make_prompt(each, vocab_size=tiny.spec.vocab_size, seed=each) for each in lengths]
    sampling = [SamplingParams(temperature=0.0, max_tokens=each) for each in counts]
    for prompt, answer in zip(prompts, served.texts(prompts, sampling), strict=True):
        assert is_greedy(tiny.reference, prompt, answer)
    decoded = [key for key in graphs.replayed if isinstance(key, Key)]
    assert {key.places for key in decoded} == {4}
    assert len(decoded) >= max(counts) - 2


@pytest.mark.parametrize("kind", [PoolingKind.FIRST, PoolingKind.MEAN])
def test_replayed_steps_that_pool_give_the_vectors_of_transformers(
    tmp_path: pathlib.Path, kind: PoolingKind
) -> None:
    _, reference = make_encoder(tmp_path, "bert", num_hidden_layers=1)
    graphs = KeptLaunches()
    model = build_model(read_spec(str(tmp_path)), str(tmp_path), dtype=torch.float32, device=DEVICE)

    def make_runner(limits: Limits) -> CudaRunner:
        return build_runner(model, limits, graphs=graphs)[0]

    sizes: dict[str, Any] = {
        "max_num_seqs": 40,
        "max_num_batched_tokens": 64,
        "max_model_len": 40,
        "num_blocks": 1,
    }
    served = Served(model, make_runner, depth=2, **sizes)
    # Each time 55 tokens in few texts, then in more than a step with decoding rows may have: both are filled up to 64.
    for seed in range(3):
        for lengths in ((30, 24, 1), (1, 2) * 18):
            prompts = [make_prompt(each, vocab_size=30, seed=seed) for each in lengths]
            found = served.pooled(prompts, [Pooling(kind=kind)] * len(prompts))
            for prompt, vector in zip(prompts, found, strict=True):
                with torch.inference_mode():
                    states = reference(input_ids=torch.tensor([prompt])).last_hidden_state[0]
                expected = states[0] if kind is PoolingKind.FIRST else states.mean(0)
                assert vector == pytest.approx(expected.tolist(), abs=1e-4)
    chosen = (32, 40) if kind is PoolingKind.FIRST else (0, 0)
    shapes = [
        Shape(64, 0, count, most, splits=1, pools=True) for count, most in zip(chosen, (32, 40), strict=True)
    ]
    assert graphs.replayed == shapes * 2
