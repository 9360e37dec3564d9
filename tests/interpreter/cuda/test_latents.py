"""Latent attention on a GPU: where there are many tokens each head's product is the vendor's, and prompts are expanded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanoserve.adapters.pytorch.cuda.building import build_runner
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.mixers.latent import gpu as latents
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.kernels.latent_attention import launch as kernels
from nanoserve.kernels.latent_attention import tuning
from nanoserve.kernels.tiles import ROLES
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, serve
from tests.served import Served, is_greedy
from tests.unit.adapters.pytorch.tiny_models import LATENT, YARN_DEEPSEEK, make_prompt, make_tiny_model

SETTINGS = {**LATENT, "rope_parameters": YARN_DEEPSEEK}
GREEDY = SamplingParams(temperature=0.0, max_tokens=3)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keys that are expanded in each launch, none of which is left out for its cost."""
    seen: list[int] = []
    launch = kernels.expanded_attention

    def counted(query: Any, expanded: Any, *more: Any, **named: Any) -> None:
        seen.append(len(expanded))
        launch(query, expanded, *more, **named)

    monkeypatch.setattr(kernels, "expanded_attention", counted)
    monkeypatch.setattr(tuning, "is_cheaper", lambda *_, **__: True)
    return seen


@pytest.mark.parametrize("query_dim", [28, None])
def test_text_equals_transformers_with_the_products_of_many_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query_dim: int | None
) -> None:
    monkeypatch.setattr(latents, "MOST_FEW_TOKENS", 0)
    monkeypatch.setattr(tuning, "is_cheaper", lambda *_, **__: False)
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **SETTINGS | {"q_lora_rank": query_dim})
    prompts = [make_prompt(length, seed=length) for length in (19, 5)]
    texts = serve(tiny.build(device=DEVICE), enforce_eager=True).texts(prompts, [GREEDY] * 2)
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))


@pytest.mark.parametrize("query_dim", [28, None])
def test_text_equals_transformers_where_prompts_are_expanded_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: list[int], query_dim: int | None
) -> None:
    monkeypatch.setattr(latents, "LEAST_ROOM", 16)
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **SETTINGS | {"q_lora_rank": query_dim})
    served = serve(tiny.build(device=DEVICE), enforce_eager=True, max_num_batched_tokens=23)
    shared = make_prompt(48, seed=1)
    # Two rows side by side, then one that finds a prefix in the cache and decodes beside a chunk.
    prompts = [shared + make_prompt(7, seed=2), make_prompt(5, seed=5)]
    texts = served.texts(prompts, [GREEDY] * 2)
    launches.clear()
    prompts += [shared + make_prompt(3, seed=3), make_prompt(30, seed=4)]
    texts += served.texts(prompts[2:], [GREEDY] * 2)
    assert max(launches) <= 23, "a row of 51 tokens takes several rounds"
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))


def test_prompts_that_suit_them_are_expanded_for_warps_of_three_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernel needs a GPU: what is launched here instead are tiles, with the rounds that were cut for it."""
    seen: list[Any] = []
    launch = kernels.expanded_attention

    def noted(*what: Any, blocks: Any, **named: Any) -> None:
        seen.append(blocks)
        launch(*what, **named)

    monkeypatch.setattr(kernels, "expanded_attention", noted)
    monkeypatch.setattr(kernels, "suits_roles", lambda *_: True)
    monkeypatch.setattr(tuning, "is_cheaper", lambda *_, **__: True)
    monkeypatch.setattr(tuning, "is_for_roles", lambda chunks, *_, **__: sum(chunks[0]) > 20)
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **SETTINGS)
    model, runners = tiny.build(device=DEVICE), []

    def make_runner(limits: Limits) -> CudaRunner:
        runners.append(build_runner(model, limits, enforce_eager=True)[0])
        return runners[0]

    served = Served(model, make_runner)
    runners[0].rehearsal.run()
    assert ROLES in seen, "compiled before requests come"
    prompts, launched = [make_prompt(30, seed=1), make_prompt(9, seed=2)], []
    for prompt in prompts:
        seen.clear()
        assert is_greedy(tiny.reference, prompt, *served.texts([prompt], [GREEDY]))
        launched.append({blocks == ROLES for blocks in seen})
    assert launched == [{True}, {False}]


def test_deterministic_serving_has_one_arithmetic_for_all_tokens(tmp_path: Path, launches: list[int]) -> None:
    tiny = make_tiny_model(tmp_path, "deepseek_v3", **SETTINGS)
    serve(tiny.build(device=DEVICE), enforce_eager=True, deterministic=True).texts(
        [make_prompt(30)], [GREEDY]
    )
    assert not launches
