"""Models computed by several processes: the text that transformers writes, and one unit in life and death."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.engine_process.client.requests import PendingReply
from nanoserve.adapters.engine_process.ranks.leader import Rank, Ranks
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_client import remote_engine
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import SequenceRouted, TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import PARTS, WeightsFacts
from tests.patience import wait_until
from tests.process.server_process import program_of
from tests.routed import FAMILIES, check
from tests.served import Answer, is_greedy
from tests.unit.adapters.engine_process.client.engines import (
    RemoteEngine,
    is_alive,
    pid_of,
    read,
    request,
    started,
    until,
    until_restarted,
)
from tests.unit.adapters.pytorch.tiny_models import HYBRID, LATENT, TinyModel, make_prompt, make_tiny_model

ODD = {"vocab_size": 131, "tie_word_embeddings": True}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "tied-odd-vocabulary": ("llama", ODD, 2),
    "experts": ("mixtral", {}, 2),
    "latents": ("deepseek_v3", {**LATENT, "num_attention_heads": 4}, 2),
    "states": ("qwen3_next", {**HYBRID, "linear_num_key_heads": 4, "linear_num_value_heads": 8}, 2),
}
"""Each with what two ranks can share."""
SPREAD = {
    "whole-experts": ("qwen3_moe", {"num_experts": 8, "num_attention_heads": 4, "num_key_value_heads": 2}, 2)
}
"""Divided with expert_parallel."""
MORE: dict[str, tuple[str, dict[str, Any], int]] = {
    "four-ranks": ("llama", {**ODD, "num_key_value_heads": 4, "attention_bias": True}, 4),
    "four-ranks-of-experts": ("mixtral", {"num_key_value_heads": 4, "sliding_window": 11}, 4),
    "fused": ("phi3", {"pad_token_id": None, "num_key_value_heads": 2}, 2),
    "untied": ("qwen3", {}, 2),
}
FREE = 160_000
"""Bytes for fewer blocks than the rows could use. There would be one state, which is never shared."""
CASES = [*MODELS, *SPREAD, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]


def run(
    engine: EngineHandle,
    prompts: list[list[int]],
    *params: SamplingParams,
    routed: dict[str, bytes] | None = None,
) -> list[list[int]]:
    """The answers; with `routed`, the experts of their tokens go there."""
    answers: dict[str, list[int]] = {}
    for number, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
        what: dict[str, Any] = {"sampling": sampling, "seed": number, "routed_experts": routed is not None}
        engine.add(Request(request_id=str(number), prompt_token_ids=tuple(prompt), **what))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, SequenceRouted) and routed is not None:
                routed[event.request_id] = event.data
            if isinstance(event, TokensGenerated):
                answers.setdefault(event.request_id, []).extend(event.token_ids)
    return [answers[str(number)] for number in range(len(prompts))]


def check_shared_beginning(engine: EngineHandle, tiny: TinyModel) -> None:
    """Of prompts that begin alike and come at once, the beginning is computed once."""
    greedy = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    beginning, before = make_prompt(20, vocab_size=128, seed=1), engine.state().prompt_tokens
    prompts = [beginning + make_prompt(rest, vocab_size=128, seed=rest) for rest in (2, 5, 9)]
    texts = run(engine, prompts, *[greedy] * 3)
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))
    assert engine.state().prompt_tokens - before == 20 + 2 + 5 + 9


@pytest.mark.parametrize("name", CASES)
def test_greedy_text_equals_transformers_though_a_rank_is_late(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other rank is stopped until the first one waits for it, and says that it has little memory; draws are compared in every step."""
    family, config, size = (MODELS | SPREAD | MORE)[name]
    # Experts of tokens are kept where a layer keeps all tokens.
    reports = family in FAMILIES and "sliding_window" not in config
    tiny = make_tiny_model(tmp_path, family, **config)
    launched: list[Rank] = []
    launch, loaded = Rank.launch, Ranks.loaded

    def stopped(*arguments: Any) -> Rank:
        launched.append(launch(*arguments))
        launched[-1].process.send_signal(signal.SIGSTOP)
        return launched[-1]

    def go_on(ranks: Ranks) -> list[int]:
        for each in launched:
            each.process.send_signal(signal.SIGCONT)
        assert len(loaded(ranks)) == size - 1
        return [10 * FREE if name == "states" else FREE]

    monkeypatch.setattr(Rank, "launch", stopped)
    monkeypatch.setattr(Ranks, "loaded", go_on)
    settings = EngineSettings(
        model=str(tmp_path),
        tensor_parallel_size=size,
        expert_parallel=name in SPREAD,
        enable_return_routed_experts=reports,
        device="cpu",
        threads=1,
        paranoid=True,
        block_size=4,
        max_num_batched_tokens=24,
        max_model_len=64,
        max_num_seqs=4,
        num_kv_blocks=60 if name == "states" else None,
    )
    parts = assemble_bench(settings)
    engine = parts.engine
    assert name == "states" or FREE / 4 < parts.facts.kv_bytes < FREE
    prompts = [make_prompt(length, vocab_size=128, seed=length) for length in (3, 17, 30)]
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    routed: dict[str, bytes] | None = {} if reports else None
    texts = run(engine, prompts, *[greedy] * 3, routed=routed)
    for number, data in (routed or {}).items():
        text = Answer(texts[int(number)], routed_experts=data)
        check(tiny, FAMILIES[family], prompts[int(number)], text)
    assert len(routed or prompts) == len(prompts)
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))
    check_shared_beginning(engine, tiny)
    counted = engine.state()
    assert len(counted.expert_tokens) == (size if name in SPREAD else 0)
    assert (sum(counted.expert_tokens.values()) == 0) is (name not in SPREAD)
    assert 1 / size <= counted.expert_balance <= 1
    drawn = SamplingParams(temperature=1.1, top_p=0.9, presence_penalty=0.3, max_tokens=8, logprobs=2)
    assert [len(each) for each in run(engine, prompts, *[drawn] * 3)] == [8] * 3
    del engine, parts
    wait_until(lambda: all(each.process.poll() is not None for each in launched))


@pytest.mark.parametrize("name", ["tied-odd-vocabulary", "whole-experts"])
def test_weights_are_updated_on_all_ranks_or_on_none(name: str, tmp_path: Path) -> None:
    family, config, size = (MODELS | SPREAD)[name]
    old, new = (make_tiny_model(tmp_path / str(seed), family, seed=seed, **config) for seed in range(2))
    settings = EngineSettings(
        model=str(old.folder),
        tensor_parallel_size=size,
        expert_parallel=name in SPREAD,
        device="cpu",
        threads=1,
        max_model_len=64,
        max_num_seqs=4,
        num_kv_blocks=40,
    )
    engine = assemble_bench(settings).engine
    prompts = [make_prompt(length, vocab_size=128, seed=length) for length in (5, 17)]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)

    def answers_as(tiny: TinyModel) -> bool:
        texts = run(engine, prompts, greedy, greedy)
        return all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))

    def update(folder: Path, *, partial: bool = False) -> None:
        store = engine.weight_store
        store.read(str(folder), anew=True, partial=partial)
        engine.write_weights(WeightsFacts(digest=store.complete()))

    assert answers_as(old)
    update(new.folder)
    assert answers_as(new)
    weights = new.folder / "model.safetensors"
    tensors = load_file(weights)
    half = next(each for each in tensors if each.endswith("q_proj.weight"))
    damaged = tmp_path / "damaged"
    shutil.copytree(new.folder, damaged)
    save_file(
        {**tensors, half: tensors[half].index_fill(0, torch.tensor([-1]), torch.nan)}, damaged / weights.name
    )
    with pytest.raises(BadValueError, match=f"rank 1: weights: tensor .*{half}.* not finite"):
        update(damaged)
    assert answers_as(new), "one rank refuses, and none changes"
    part = tmp_path / "part"
    part.mkdir()
    original = load_file(old.folder / weights.name)
    save_file({half: original[half]}, part / weights.name)
    update(part, partial=True)
    new.reference.load_state_dict({half: original[half]}, strict=False)
    assert answers_as(new)
    for level in (1, 2):
        engine.sleep(level)
        for each in PARTS:
            engine.weight_store.wake(each)
        engine.note_awake(PARTS)
        assert answers_as(new)
    with pytest.raises(BadValueError, match="come from folders, or from another"):
        engine.weight_store.read(iter(tensors.items()), anew=True, partial=False)


def others_of(engine: RemoteEngine) -> list[int]:
    """The ranks that follow the engine's process."""
    children = psutil.Process(pid_of(engine)).children()
    return [each.pid for each in children if "llguidance.serving" not in program_of(each)]


async def test_a_killed_rank_takes_the_group_along_and_loses_no_answer() -> None:
    def ask(engine: RemoteEngine, attempt: int, *, stream: bool) -> list[PendingReply]:
        prompts = [(5, 6, 7), (300, 301), (17,)]
        more: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "stream": stream}
        return [engine.submit(request(f"{attempt}-{each}", each, **more)) for each in prompts]

    settings = EngineSettings(tensor_parallel_size=2, threads=1, dtype="float32")
    async with started(remote_engine(settings)) as engine:
        first, [other] = pid_of(engine), others_of(engine)
        whole = [(await read(reply)).ids for reply in ask(engine, 0, stream=True)]
        steps = engine.state.steps if engine.state is not None else 0
        replies = [*ask(engine, 1, stream=False), *ask(engine, 2, stream=True)]
        await until(lambda: engine.state is not None and engine.state.steps > steps)
        os.kill(other, signal.SIGKILL)
        await until_restarted(engine, 1)
        assert not is_alive(first)
        answers = [await read(reply) for reply in replies]
        assert [answer.error for answer in answers] == [None] * 6
        assert [answer.ids for answer in answers] == whole * 2
        [other] = others_of(engine)
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: not is_alive(other))
