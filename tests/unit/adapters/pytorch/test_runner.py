"""What only the torch runner can show: scores, broken logits and the cache's dtype.

That its rows compute what they should is shown by the contract of model runners, and token for token against transformers by
`tests/process/test_engine_against_transformers.py`.
"""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.step import SINK_BLOCK, Chunk, TableUpdate, TokenLogprobs
from tests.plans import SIZES, Driver, admitted
from tests.served import PROCESSED, Served, assert_processed_as_by, is_greedy
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


def poisoned(model: Any) -> TorchRunner:
    """A runner whose whole KV cache is NaN until it is written."""
    runner = TorchRunner(model, attrs.evolve(SIZES, vocab_size=128))
    for tensor in itertools.chain(*runner.kv.layers):
        tensor.fill_(torch.nan)
    return runner


def assert_scored(score: TokenLogprobs, token: int, expected: torch.Tensor, num_top: int) -> None:
    """A score is what the model's log-probabilities, [vocab], say of a token."""
    assert score.token_id == token
    assert score.logprob == pytest.approx(float(expected[token]), abs=1e-4)
    assert score.rank == int((expected > expected[token]).sum()) + 1
    assert [each for each, _ in score.top] == expected.topk(num_top).indices.tolist()


def test_blocks_that_leave_the_window_may_be_given_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = make_tiny_model(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=7)
    prompt = make_prompt(13, seed=4)
    runner = poisoned(tiny.build())
    driver = Driver(runner)
    driver.step(
        admitted=[admitted(0, prompt, range(3, 9), temperature=0.0)], chunks=[Chunk(0, 0, 13, samples=True)]
    )
    for gone, steps in enumerate((1, 4, 4)):
        for tensor in itertools.chain(*runner.kv.layers):
            tensor[3 + gone] = torch.nan
        driver.step(table_updates=[TableUpdate(0, 0, gone, (SINK_BLOCK,))], decoding=[0])
        for _ in range(steps - 1):
            driver.step(decoding=[0])
    assert is_greedy(tiny.reference, prompt, driver.of(0))


def test_the_next_tenant_of_a_row_is_scored_only_if_it_asks(llama: TinyModel) -> None:
    driver = Driver(poisoned(llama.build()))
    for scores in (2, None):
        row = admitted(0, make_prompt(5), (1, 2), logprobs=scores, prompt_logprobs=scores)
        driver.step(released=[0], admitted=[row], chunks=[Chunk(0, 0, 5, samples=True)])
    assert [bool(each.logprobs) for each in driver.results] == [True, False]
    assert [bool(each.prompt_logprobs) for each in driver.results] == [True, False]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_broken_logits_is_named_and_its_neighbours_go_on(
    tmp_path_factory: pytest.TempPathFactory, depth: int, temperature: float
) -> None:
    tiny = make_tiny_model(tmp_path_factory.mktemp("broken"), tie_word_embeddings=False)
    model = tiny.build()
    with torch.no_grad():
        model.embedding.weight[127] = torch.nan
    prompts = {0: [5, 6, 7], 1: [9, 127, 3], 2: [8, 8, 1]}
    rows = [
        admitted(row, prompt, range(6 * row + 1, 6 * row + 4), temperature=temperature if row == 1 else 0.0)
        for row, prompt in prompts.items()
    ]
    chunks = [Chunk(row, 0, 3, samples=True) for row in prompts]
    driver = Driver(poisoned(model), depth=depth)

    driver.step(admitted=rows, chunks=chunks)
    driver.step(decoding=prompts)
    driver.step(released=(1,), decoding=(0, 2))
    for _ in range(3):
        driver.step(decoding=(0, 2))
    driver.finish()
    assert [each.broken for each in driver.results] == [(1,)] * 2 + [()] * 4
    for row in (0, 2):
        assert 127 not in driver.of(row)
        assert is_greedy(tiny.reference, prompts[row], driver.of(row))


def test_logprobs_are_those_of_the_model_not_of_the_sampler(llama: TinyModel) -> None:
    prompt = make_prompt(6, seed=9)
    shaped: dict[str, Any] = {"top_k": 4, "logit_bias": ((5, 50.0),), "repetition_penalty": 1.7}
    rows = [
        admitted(1, make_prompt(4), (1, 2)),
        admitted(0, prompt, (3, 4), temperature=0.7, logprobs=3, **shaped),
    ]
    driver = Driver(poisoned(llama.build()))
    driver.step(admitted=rows, chunks=[Chunk(1, 0, 4, samples=True), Chunk(0, 0, 6, samples=True)])
    driver.step(decoding=(1, 0), table_updates=[TableUpdate(1, 0, 1, (5,))])
    assert driver.of(0) == [5, 5]
    expected = llama.expected([*prompt, 5, 5])["logits"].log_softmax(-1)
    for position, result in enumerate(driver.results, start=5):
        assert result.logprobs.keys() == {0}
        assert_scored(result.logprobs[0][0], 5, expected[position], num_top=3)


def test_processed_logprobs_are_those_of_what_is_drawn_from(llama: TinyModel) -> None:
    model, prompts = llama.build(), [make_prompt(6, seed=9), make_prompt(4)]
    engine = Served(model, lambda limits: TorchRunner(model, limits), processed_logprobs=True)
    for prompt, answer in zip(prompts, engine.answers(prompts, [PROCESSED] * 2), strict=True):
        assert_processed_as_by(llama.reference, prompt, answer)


@pytest.mark.parametrize("chunks", [(23,), (1,) * 23, (4, 4, 4, 4, 4, 3), (20, 3), (22, 1)])
@pytest.mark.parametrize("generated", [0, 4])
def test_prompt_logprobs_equal_transformers_over_chunk_borders(
    llama: TinyModel, chunks: tuple[int, ...], generated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.adapters.pytorch.prompt_scoring.TOKENS_AT_ONCE", 5)
    tokens, neighbour = make_prompt(23, seed=11), make_prompt(3)
    num_prompt, start = 23 - generated, 0
    rows = [
        admitted(1, neighbour, range(1, 8)),
        admitted(2, tokens, range(8, 14), num_prompt=num_prompt, prompt_logprobs=2),
    ]
    driver = Driver(poisoned(llama.build()))
    for length in chunks:
        chunk = Chunk(2, start, length, samples=start + length == 23)
        if start == 0:
            driver.step(admitted=rows, chunks=[Chunk(1, 0, 3, samples=True), chunk])
        else:
            driver.step(chunks=[chunk], decoding=[1])
        start += length
    assert all(result.prompt_logprobs.keys() <= {2} for result in driver.results)
    found = {
        position: score
        for result in driver.results
        for position, score in result.prompt_logprobs.get(2, {}).items()
    }
    assert sorted(found) == list(range(1, num_prompt))
    expected = llama.expected(tokens)["logits"].log_softmax(-1)
    for position, score in found.items():
        assert_scored(score, tokens[position], expected[position - 1], num_top=2)


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"quantization": "int8"}], ids=str)
def test_the_cache_takes_the_dtype_the_model_computes_in(llama: TinyModel, options: dict[str, Any]) -> None:
    runner = poisoned(llama.build(**options))
    driver = Driver(runner)
    driver.step(admitted=[admitted(0, make_prompt(5), (1, 2))], chunks=[Chunk(0, 0, 5, samples=True)])
    driver.step(decoding=[0])
    assert len(driver.of(0)) == 2
    assert runner.kv.layers[0][0].dtype == options.get("dtype", torch.float32)
