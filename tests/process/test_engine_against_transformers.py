"""The whole engine over the torch runner equals transformers, alone and in a crowd that is preempted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanoserve.adapters.pytorch.linear import half
from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.sampling import SamplingParams
from tests.served import Served, assert_scored_as_by, is_greedy
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

KINDS = ("deepseek_v3", "gemma3_text", "gpt_oss", "llama", "mistral", "qwen3_next")
"""Families of every kind of cache."""
CROWD = [3 + 10 * number for number in range(8)]


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **CASES[request.param])


def served(tiny: TinyModel, **settings: Any) -> Served:
    model = tiny.build()
    return Served(model, lambda limits: TorchRunner(model, limits), block_size=4, **settings)


def prompts_of(tiny: TinyModel) -> list[list[int]]:
    return [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in CROWD]


def is_windowed(tiny: TinyModel) -> bool:
    return all(group.window for group in tiny.spec.cache_groups)


def test_greedy_text_equals_transformers_alone_and_in_a_preempted_crowd(tiny: TinyModel) -> None:
    prompts = prompts_of(tiny)
    greedy = [SamplingParams(temperature=0.0, max_tokens=32)] * len(prompts)
    alone = [served(tiny).texts([prompt], greedy[:1])[0] for prompt in prompts[::5]]
    crowd = served(tiny, num_blocks=20 if is_windowed(tiny) else 50, depth=2)
    texts = crowd.texts(prompts, greedy)
    assert crowd.has_preempted
    assert texts[::5] == alone
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))


@pytest.mark.skipif(not half.available(), reason="no products with half weights on this CPU")
@pytest.mark.parametrize("name", KINDS)
def test_greedy_text_of_a_checkpoint_in_bfloat16_equals_transformers_in_float32(
    name: str, tmp_path: Path
) -> None:
    tiny = make_tiny_model(tmp_path, name, **CASES[name])
    for weight in tiny.reference.parameters():
        weight.data = weight.data.bfloat16().float()
    tiny.reference.save_pretrained(tmp_path)
    model = tiny.build()
    assert any(isinstance(each, half.HalfLinear) for each in model.modules())
    crowd = Served(model, lambda limits: TorchRunner(model, limits), block_size=4)
    prompts = prompts_of(tiny)
    texts = crowd.texts(prompts, [SamplingParams(temperature=0.0, max_tokens=32)] * len(prompts))
    assert all(is_greedy(tiny.reference, *each) for each in zip(prompts, texts, strict=True))


@pytest.mark.parametrize("tiny", KINDS, indirect=True)
def test_seeded_text_depends_on_nothing_but_the_request(tiny: TinyModel) -> None:
    prompts = prompts_of(tiny)
    params = [
        SamplingParams(temperature=0.8, max_tokens=30),
        SamplingParams(temperature=1.1, top_k=9, max_tokens=25),
        SamplingParams(temperature=0.9, top_p=0.7, max_tokens=30, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, max_tokens=20),
        SamplingParams(temperature=1.0, min_p=0.1, frequency_penalty=0.5, max_tokens=30),
        SamplingParams(temperature=1.0, logit_bias={5: 3.0}, presence_penalty=1.0, max_tokens=30),
        SamplingParams(temperature=0.7, allowed_token_ids=range(40), max_tokens=30),
        SamplingParams(temperature=1.3, logprobs=2, max_tokens=30),
    ]
    roomy = served(tiny, max_num_batched_tokens=500).texts(prompts, params)
    cramped = served(
        tiny, num_blocks=12 if is_windowed(tiny) else 28, depth=2, max_num_seqs=5, max_num_batched_tokens=7
    )
    assert cramped.texts(prompts, params) == roomy
    assert cramped.has_preempted
    shuffled = served(tiny, prefix_caching=False)
    for number in (7, 1):
        [tokens] = shuffled.texts([prompts[number]], [params[number]], first_seed=number)
        assert tokens == roomy[number]


def test_logprobs_and_prompt_logprobs_equal_transformers(tiny: TinyModel) -> None:
    prompt = make_prompt(23, vocab_size=tiny.spec.vocab_size, seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, prompt_logprobs=2)
    [answer] = served(tiny, max_num_batched_tokens=16).answers([prompt], [params])
    assert len(answer.prompt_logprobs) == len(prompt)
    assert answer.prompt_logprobs[0] is None
    assert_scored_as_by(tiny.reference, prompt, answer, num_top=3)
