"""Every family: prompts of any length and cut, prefixes reused at any length, and rows that end in flight, over pages that are NaN when free."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams
from tests.poisoned import PoisonedEngine, is_all_poison, same
from tests.served import is_greedy
from tests.unit.adapters.pytorch.tiny_models import CASES, PagedRun, TinyModel, make_prompt, make_tiny_model

BLOCK = 8
LONGEST = 130
LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 129)
CUTS = (1, 2, 3, 5, 16, 63, 64, 65)
REUSED = ("deepseek_v3", "gemma3_text", "gpt_oss", "mistral", "olmo2")
"""Families of every kind of attention cache; of states there is more in test_hybrid_engine.py."""


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("model"), request.param, **CASES[request.param])


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return tiny.build()


def partitions() -> list[list[int]]:
    """The lengths whole, the longest prompt in chunks of each cut, and in chunks of random lengths."""
    drawn: list[int] = []
    rest = LONGEST
    numbers = random.Random(1)
    while rest:
        drawn.append(numbers.randint(1, min(rest, 40)))
        rest -= drawn[-1]
    rows: list[list[int]] = [[length] for length in LENGTHS]
    rows += [[min(cut, LONGEST - start) for start in range(0, LONGEST, cut)] for cut in CUTS]
    return [*rows, drawn]


def test_prompts_of_any_length_and_cut_equal_transformers(tiny: TinyModel, model: DecoderModel) -> None:
    prompt, rows = make_prompt(LONGEST), partitions()
    run = PagedRun.start(model, [prompt[: sum(row)] for row in rows], block_size=16, num_blocks=200)
    got: list[list[Tensor]] = [[] for _ in rows]
    for step in range(LONGEST):
        counts = [row[step] if step < len(row) else 0 for row in rows]
        computed = iter(run.step(counts))
        for pieces, count in zip(got, counts, strict=True):
            if count:
                pieces.append(next(computed))
    wanted = tiny.expected(prompt)["logits"]
    tolerance = (4e-5 if tiny.spec.architecture == "qwen3_next" else 1e-5) * max(
        1.0, wanted.abs().max().item()
    )
    for row, pieces in zip(rows, got, strict=True):
        torch.testing.assert_close(torch.cat(pieces), wanted[: sum(row)], rtol=0, atol=tolerance)


@pytest.mark.parametrize("tiny", [*REUSED, "qwen3_next"], indirect=True)
def test_a_hit_answers_as_a_cold_prompt(model: DecoderModel) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0)
    served = PoisonedEngine(model, block_size=BLOCK)
    assert is_all_poison(served.runner)
    for rest in range(BLOCK + 2):
        prompt = make_prompt(3 * BLOCK + rest, seed=rest)
        served.runner.computed = 0
        cold, warm = served.answer(prompt, greedy), served.answer(prompt, greedy)
        same(warm, cold)
        assert served.runner.computed == len(prompt) + 1 + (len(prompt) - 1) % BLOCK


@pytest.mark.parametrize("budget", [16, 200])
@pytest.mark.parametrize("tiny", [*REUSED, "llama", "qwen3_next"], indirect=True)
def test_prompts_of_one_beginning_at_once_compute_it_once_and_equal_transformers(
    tiny: TinyModel, model: DecoderModel, budget: int
) -> None:
    beginning = make_prompt(5 * BLOCK, seed=1)
    prompts = [beginning + make_prompt(1 + 3 * number, seed=2 + number) for number in range(5)]
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    served = PoisonedEngine(
        model, block_size=BLOCK, num_blocks=100, depth=2, max_num_seqs=5, max_num_batched_tokens=budget
    )
    answers = served.texts(prompts, [greedy] * len(prompts))
    assert served.runner.computed == len(beginning) + sum(map(len, prompts)) - 5 * len(beginning)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert is_greedy(tiny.reference, prompt, answer)


def until_stopped(
    served: PoisonedEngine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[list[int]]:
    """Serve a crowd of which each row ends at its stop token; the tokens of each."""
    found: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        served.add(str(number), prompt, each, number)
    while served.engine.has_work:
        for event in served.engine.turn():
            if isinstance(event, TokensGenerated):
                assert event.finish_reason in {None, FinishReason.STOP}
                found[event.request_id] += event.token_ids
    return list(found.values())


@pytest.mark.parametrize("tiny", [*REUSED, "qwen3_next"], indirect=True)
def test_rows_that_end_while_their_next_step_is_in_flight_spoil_nothing(model: DecoderModel) -> None:
    prompts = [make_prompt(5 + 9 * number, seed=number) for number in range(6)]
    free = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
    alone = PoisonedEngine(model, block_size=BLOCK).texts(prompts, [free] * len(prompts))
    stops = [tokens[3 + 2 * number] for number, tokens in enumerate(alone)]
    wanted = [tokens[: tokens.index(stop) + 1] for tokens, stop in zip(alone, stops, strict=True)]
    cramped: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 24, "max_model_len": 72}
    for depth in (2, 3):
        served = PoisonedEngine(model, block_size=BLOCK, num_blocks=12, depth=depth, **cramped)
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=14,
                ignore_eos=True,
                stop_token_ids=[stop],
                include_stop_str_in_output=True,
            )
            for stop in stops
        ]
        assert until_stopped(served, prompts, params) == wanted
