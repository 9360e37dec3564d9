"""The whole engine over the torch runner equals transformers, alone and in a crowd that is preempted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.events import PromptScored, TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import TokenLogprobs
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-llama3-tied": ("llama", {"llama3": True, "tie_word_embeddings": True}),
    "llama-gqa1": ("llama", {"num_key_value_heads": 4}),
    "llama-gqa8-wide-heads": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen3-gqa4-tied": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True, "head_dim": 24}),
    "mistral": ("mistral", {"sliding_window": 11}),
}
TOKENS = 64
CROWD = [3 + 5 * number for number in range(16)]


@pytest.fixture(scope="module", params=MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, config = MODELS[request.param]
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config)


class Served:
    """An audited engine over a tiny model, every KV slot NaN until it is written."""

    def __init__(self, tiny: TinyModel, *, num_blocks: int = 600, depth: int = 1, **limits: Any) -> None:
        settings = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "max_model_len": 192} | limits
        self.limits = Limits(
            **settings, vocab_size=tiny.spec.vocab_size, block_size=4, num_blocks=num_blocks, watermark=0.0
        )
        runner = TorchRunner(tiny.build(), self.limits)
        for tensor in (*runner.kv.keys, *runner.kv.values):
            tensor.fill_(math.nan)
        self.engine = Engine(
            limits=self.limits,
            cache_groups=tiny.spec.cache_groups,
            runner=runner,
            clock=SystemClock(),
            depth=depth,
            paranoid=True,
        )

    def answers(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[int]]:
        """Serve all prompts at once; request i has seed i."""
        tokens: dict[str, list[int]] = {}
        for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            tokens[str(number)] = []
            self.engine.add(
                Request(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=each, seed=number)
            )
        while self.engine.has_work:
            for event in self.engine.turn():
                if isinstance(event, TokensGenerated):
                    assert event.finish_reason in {None, FinishReason.LENGTH}, event.error
                    tokens[event.request_id].extend(event.token_ids)
        return list(tokens.values())


def prompts_of(tiny: TinyModel) -> list[list[int]]:
    return [make_prompt(length, vocab_size=tiny.spec.vocab_size, seed=length) for length in CROWD]


def is_windowed(tiny: TinyModel) -> bool:
    return any(group.window for group in tiny.spec.cache_groups)


def expected(tiny: TinyModel, prompt: Sequence[int]) -> list[int]:
    """What transformers' own generate says, end-of-sequence being a token like any other."""
    tiny.reference.generation_config.eos_token_id = None
    with torch.inference_mode():
        ids = torch.tensor([list(prompt)])
        out = tiny.reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=TOKENS,
            pad_token_id=0,
        )
    result: list[int] = out[0, len(prompt) :].tolist()
    return result


GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)


def test_greedy_text_equals_transformers_alone_and_in_a_preempted_crowd(tiny: TinyModel) -> None:
    prompts = prompts_of(tiny)
    truth = [expected(tiny, prompt) for prompt in prompts]
    alone = [Served(tiny).answers([prompt], [GREEDY])[0] for prompt in prompts[::5]]
    assert alone == truth[::5]
    for depth in (1, 2):
        crowd = Served(tiny, num_blocks=40 if is_windowed(tiny) else 90, depth=depth)
        assert crowd.answers(prompts, [GREEDY] * len(prompts)) == truth
        assert crowd.engine._scheduler.tally.preemptions > 0


def test_seeded_text_depends_on_nothing_but_the_request(tiny: TinyModel) -> None:
    prompts = prompts_of(tiny)[:8]
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
    roomy = Served(tiny, max_num_batched_tokens=500).answers(prompts, params)
    cramped = Served(
        tiny, num_blocks=12 if is_windowed(tiny) else 24, depth=2, max_num_seqs=5, max_num_batched_tokens=7
    )
    assert cramped.answers(prompts, params) == roomy
    assert cramped.engine._scheduler.tally.preemptions > 0
    shuffled = Served(tiny, prefix_caching=False)
    for number in (3, 0, 7, 1):
        tokens = _one(shuffled, number, prompts[number], params[number])
        assert tokens == roomy[number]


def _one(served: Served, seed: int, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    served.engine.add(Request(request_id="x", prompt_token_ids=tuple(prompt), sampling=params, seed=seed))
    tokens: list[int] = []
    while served.engine.has_work:
        for event in served.engine.turn():
            if isinstance(event, TokensGenerated):
                tokens.extend(event.token_ids)
    return tokens


def test_logprobs_and_prompt_logprobs_equal_transformers(tiny: TinyModel) -> None:
    prompt = make_prompt(23, vocab_size=tiny.spec.vocab_size, seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, prompt_logprobs=2)
    served = Served(tiny, max_num_batched_tokens=16)
    served.engine.add(Request(request_id="x", prompt_token_ids=tuple(prompt), sampling=params))
    tokens, scores, scored = list(prompt), list[TokenLogprobs](), list[PromptScored]()
    while served.engine.has_work:
        for event in served.engine.turn():
            if isinstance(event, TokensGenerated):
                tokens.extend(event.token_ids)
                scores.extend(event.logprobs)
            elif isinstance(event, PromptScored):
                scored.append(event)
    with torch.inference_mode():
        truth = tiny.reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    [prompt_scores] = [each.logprobs for each in scored]
    assert prompt_scores[0] is None
    for position, score in enumerate([*prompt_scores[1:], *scores], start=1):
        assert score is not None
        row = truth[position - 1]
        assert score.token_id == tokens[position]
        assert score.logprob == pytest.approx(row[tokens[position]].item(), abs=1e-4)
        assert score.rank == int((row > row[tokens[position]]).sum()) + 1
        top = row.topk(2 if position < len(prompt) else 3)
        assert [value for _, value in score.top] == pytest.approx(top.values.tolist(), abs=1e-4)
