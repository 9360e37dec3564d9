"""Requests that ask for it get the bits of an engine that is deterministic throughout, whatever is decoded beside them and however."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.runner import TorchTicket
from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.ngrams import NGramDrafter
from nanoserve.domain.scheduling.admission import check_request
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import StepPlan
from tests.fakes.finite_grammars import TardyGrammars
from tests.poisoned import Poisoned, PoisonedEngine, same
from tests.served import Answer
from tests.unit.adapters.pytorch.tiny_models import CASES, TinyModel, make_prompt, make_tiny_model

VOCAB = 128
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=28, logprobs=1),
    SamplingParams(temperature=1.0, max_tokens=26, logprobs=1, prompt_logprobs=1),
    SamplingParams(temperature=0.9, top_p=0.7, max_tokens=9, logprobs=1),
    SamplingParams(temperature=0.8, top_k=9, logit_bias={5: 3.0}, max_tokens=23, logprobs=1),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.5, max_tokens=22, logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=1, logprobs=1),
    SamplingParams(temperature=1.0, min_tokens=20, stop_token_ids=range(50), max_tokens=20, logprobs=1),
    SamplingParams(temperature=1.0, max_tokens=2, logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=30, logprobs=1),
    SamplingParams(temperature=1.0, max_tokens=33, logprobs=1),
]
ASKING = [attrs.evolve(each, deterministic=True) for each in PARAMS]


class Unsteady(Poisoned):
    """Says another token now and then in steps that are not invariant, as kernels do that round otherwise."""

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> TorchTicket:
        """Compute the step, and change every fifth token or so."""
        ticket = super().submit(plan)
        for row in plan.decoding if plan.step % 5 == 0 else ():
            place = plan.sampling_rows.index(row)
            assert ticket.tokens is not None
            ticket.tokens[place] = (ticket.tokens[place] + 1) % VOCAB
            self._rows.tokens[row, self._rows.length(row) - 1] = ticket.tokens[place]
        return ticket


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **CASES[request.param])


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build(dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    shared = make_prompt(13, vocab_size=VOCAB, seed=9)
    return [
        [*(shared if number % 3 else ()), *make_prompt(4 + number, vocab_size=VOCAB, seed=number % 4)]
        for number in range(len(PARAMS))
    ]


@pytest.fixture(scope="module")
def expected(model: DecoderModel, prompts: list[list[int]]) -> list[Answer]:
    model.is_invariant = True
    try:
        return PoisonedEngine(model, block_size=4, deterministic=True).answers(prompts, ASKING)
    finally:
        model.is_invariant = False


def served(model: DecoderModel, **limits: Any) -> PoisonedEngine:
    return PoisonedEngine(model, **({"block_size": 4, "max_num_seqs": 6} | limits))


def cancel_one(engine: PoisonedEngine, prompt: list[int], turns: int) -> None:
    answers = {"gone": Answer()}
    engine.add("gone", prompt, ASKING[9], 77)
    for _ in range(turns):
        engine.turn(answers)
    engine.engine.abort("gone")
    engine.turn(answers)


@pytest.mark.parametrize(
    ("tiny", "seed"),
    [("llama", 0), ("llama", 1), ("gemma3_text", 1), ("mistral", 2), ("qwen3_moe", 1), ("deepseek_v3", 0)],
    indirect=["tiny"],
)
def test_bits_are_those_of_an_engine_that_is_deterministic_throughout(
    model: DecoderModel, prompts: list[list[int]], expected: list[Answer], seed: int
) -> None:
    dice = random.Random(seed)
    engine = served(
        model,
        runs=Unsteady,
        num_blocks=(34, 80, 34)[seed],
        depth=1 + seed % 2,
        max_num_batched_tokens=(48, 11, 20)[seed],
        most_unverified=(7, 31, 2)[seed],
        max_itl=(None, 1e-9, None)[seed],
    )
    for _ in range(2):  # their prefixes are found then
        asks = [dice.random() < 0.7 for _ in prompts]
        params = [(ASKING if each else PARAMS)[number] for number, each in enumerate(asks)]
        cancel_one(engine, prompts[1], dice.randint(2, 12))
        for asked, one, other in zip(asks, engine.answers(prompts, params), expected, strict=True):
            assert one == other or not asked
    counters = engine.engine.scheduler.counters
    assert 0 < counters.accepted_tokens < counters.draft_tokens
    assert engine.engine.state(count_leaks=True).leaked_blocks == 0


@pytest.mark.parametrize("tiny", ["llama", "mistral"], indirect=True)
def test_rows_that_do_not_ask_say_what_they_say_alone(tiny: TinyModel, prompts: list[list[int]]) -> None:
    model = tiny.build()
    without = served(model).answers(prompts, PARAMS)
    params = [(ASKING if number % 2 else PARAMS)[number] for number in range(len(PARAMS))]
    for one, other in zip(served(model, depth=2).answers(prompts, params), without, strict=True):
        same(one, other)


@pytest.mark.parametrize("tiny", ["llama"], indirect=True)
def test_prefixes_are_shared_with_requests_that_ask_and_with_no_others(model: DecoderModel) -> None:
    prompt = make_prompt(24, vocab_size=VOCAB, seed=3)
    engine = served(model, num_blocks=60)
    found = []
    for params in (PARAMS[0], ASKING[0], PARAMS[0], ASKING[0]):
        engine.answer(prompt, params)
        found.append(engine.engine.scheduler.cache.statistics.hit_tokens)
    assert found == [0, 0, 20, 40]


@pytest.mark.parametrize("tiny", ["llama"], indirect=True)
def test_grammars_and_engines_that_draft_verify_each_token(
    model: DecoderModel, prompts: list[list[int]]
) -> None:
    texts = [
        "5 6 7 8 9 10 11 12",
        "|".join(f"20 21 {each} 22 23 {each} 24" for each in range(30, 60)),
        "",
    ] * 2
    params = [attrs.evolve(ASKING[number], max_tokens=20) for number in (0, 1, 2, 3, 4, 9)]
    model.is_invariant = True
    whole = PoisonedEngine(model, block_size=4, deterministic=True, grammars=grammars())
    wanted = whole.bound(prompts[:6], params, texts)
    model.is_invariant = False
    for how in ({}, {"drafter": NGramDrafter(), "max_width": 4}, {"depth": 2}):
        engine = PoisonedEngine(model, block_size=4, grammars=grammars(), **how)
        assert engine.bound(prompts[:6], params, texts) == wanted


def grammars() -> TardyGrammars:
    """Each of them is late at times."""
    found = TardyGrammars(VOCAB, ["5 6 7 8 9 10 11 12"])
    found.ends = frozenset({1})
    return found


def test_where_it_cannot_be_had_it_is_refused_by_name() -> None:
    limits = Limits(
        max_num_seqs=2,
        max_num_batched_tokens=8,
        max_model_len=32,
        vocab_size=9,
        block_size=4,
        num_blocks=9,
        not_deterministic="on a GPU all requests are, or none is",
    )
    cache = KVCache([CacheGroup(layers=(0,))], num_blocks=9, block_size=4)
    plain, asking = (
        Request(request_id="1", prompt_token_ids=(1,), sampling=SamplingParams(deterministic=each))
        for each in (False, True)
    )
    with pytest.raises(BadValueError, match=r"deterministic.*on a GPU"):
        check_request(asking, limits, cache)
    check_request(plain, limits, cache)
    check_request(asking, attrs.evolve(limits, deterministic=True), cache)
