"""A model with recurrent states under the engine: reuse, cuts and preemption change no text, over pages that are NaN when free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.sampling import SamplingParams
from tests.poisoned import PoisonedEngine, same
from tests.served import Answer, is_greedy
from tests.unit.adapters.pytorch.tiny_models import (
    HYBRID,
    TinyModel,
    make_prompt,
    make_tiny_model,
)

BLOCK = 8
STATES, FULL = 0, 1
"""Cache groups."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen3_next", **HYBRID)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build()


class Hybrid(PoisonedEngine):
    """With blocks of its own size, and answers of one kind."""

    def __init__(self, model: DecoderModel, **limits: Any) -> None:
        super().__init__(model, block_size=BLOCK, **limits)

    def answer(self, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Answer:
        return super().answer(prompt, params)

    def cost(self, prompt: Sequence[int]) -> int:
        """Prompt tokens that are computed to answer it."""
        before = self.runner.computed
        self.answer(prompt)
        return self.runner.computed - before


def test_a_prompt_that_goes_on_computes_a_block_and_its_rest(model: DecoderModel) -> None:
    served, first = Hybrid(model), make_prompt(90)
    longer, branch = first + make_prompt(13, seed=1), first[:60] + make_prompt(20, seed=2)
    assert served.cost(first) == len(first)
    assert served.cost(longer) <= BLOCK + 13
    assert served.cost(branch) == len(branch)  # no state was kept where it branches off, until now
    assert served.engine.state().prefix_lost == {"state": 60 // BLOCK * BLOCK}
    other = first[:60] + make_prompt(20, seed=3)
    assert served.cost(other) <= BLOCK + 20
    same(served.answer(other), Hybrid(model, prefix_caching=False).answer(other))


def test_a_hit_after_its_state_is_evicted_or_its_blocks_are(model: DecoderModel) -> None:
    for scarce in ((3, 200), (40, 16)):
        served = Hybrid(model, num_blocks=scarce, max_num_seqs=2, max_model_len=120)
        prompts = [make_prompt(70, seed=seed) for seed in range(6)]
        cold = [served.answer(prompt) for prompt in prompts]
        for prompt, answer in zip(prompts, cold, strict=True):
            same(served.answer(prompt), answer)


def test_a_crowd_with_too_few_slots_waits_and_is_answered(tiny: TinyModel, model: DecoderModel) -> None:
    prompts = [make_prompt(9 + 5 * number, seed=number) for number in range(12)]
    for depth in (1, 2):
        served = Hybrid(model, num_blocks=(5, 60), depth=depth)
        for prompt, answer in zip(prompts, served.answers(prompts, [GREEDY] * 12), strict=True):
            assert is_greedy(tiny.reference, prompt, answer.tokens)


def test_what_is_preempted_goes_on_from_its_snapshot(tiny: TinyModel, model: DecoderModel) -> None:
    prompts = [make_prompt(40, seed=number) for number in range(2)]
    params = [SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)] * 2
    for depth in (1, 2):
        served = Hybrid(model, num_blocks=(6, 18), depth=depth, max_model_len=96)
        for prompt, answer in zip(prompts, served.answers(prompts, params), strict=True):
            assert is_greedy(tiny.reference, prompt, answer.tokens)
        assert [each.num_computed_tokens for each in served.runner.resumed] == [32]


def test_answers_of_one_prompt_share_its_state(model: DecoderModel) -> None:
    prompt = make_prompt(70)
    params = SamplingParams(temperature=0.9, max_tokens=20, ignore_eos=True, n=3)

    def texts(served: Hybrid) -> list[list[int]]:
        found: list[list[int]] = [[], [], []]
        served.add("x", prompt, params, 5)
        while served.engine.has_work:
            for event in served.engine.turn():
                if isinstance(event, TokensGenerated):
                    found[event.index] += event.token_ids
        return found

    served = Hybrid(model)
    together = texts(served)
    assert together == texts(Hybrid(model, max_num_batched_tokens=17))
    assert len({tuple(each) for each in together}) == 3
    assert served.runner.computed == len(prompt) + 2 * (1 + (len(prompt) - 1) % BLOCK)


def test_a_request_that_is_cancelled_in_its_prompt_leaves_a_sound_prefix(model: DecoderModel) -> None:
    prompt = make_prompt(150)
    served = Hybrid(model, max_num_batched_tokens=16)
    served.add("x", prompt, GREEDY, 0)
    for _ in range(4):
        served.turn({"x": Answer()})
    served.engine.abort("x")
    served.turn({"x": Answer()})
    same(served.answer(prompt), Hybrid(model, prefix_caching=False).answer(prompt))


def test_a_deterministic_cpu_has_the_same_bits_in_any_company(tmp_path: Path) -> None:
    exact = make_tiny_model(tmp_path, "qwen3_next", **HYBRID).build()
    exact.is_invariant = True
    prompts = [make_prompt(3 + 11 * number, seed=number) for number in range(5)]
    alone = [Hybrid(exact).answer(prompt) for prompt in prompts]
    cramped = Hybrid(exact, num_blocks=(20, 24), max_num_batched_tokens=13, max_num_seqs=5)
    assert cramped.answers(prompts, [GREEDY] * 5) == alone
