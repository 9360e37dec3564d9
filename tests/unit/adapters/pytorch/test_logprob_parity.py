"""A token's log-probability when it is generated and when it is read as a prompt are one number, whatever the batch, the cuts and the hits."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from nanoserve.ports.sampling import SamplingParams
from tests.served import Answer, Served, assert_scored_as_by
from tests.unit.adapters.pytorch.test_invariant_model import FAMILIES, PROMPTS, served
from tests.unit.adapters.pytorch.tiny_models import make_tiny_model

ROUNDING = 1e-5
"""Products are added up in another order for one row than for many, which is worth a few last bits of logits: up to 6e-6 was seen."""
GENERATED = SamplingParams(temperature=0.9, max_tokens=12, ignore_eos=True, logprobs=1)
READ = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=0)
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1, "max_num_batched_tokens": 500},
    "in a crowd": {"max_num_batched_tokens": 500},
    "in chunks": {"max_num_batched_tokens": 17, "block_size": 5},
    "preempted": {"num_blocks": 16, "block_size": 8, "max_num_batched_tokens": 30, "max_model_len": 112},
}
"""How a request is served."""
PARITY = ("llama", "mistral", "qwen3_moe", "gemma2", "deepseek_v3")


def generated(engine: Served, prompts: list[list[int]]) -> list[Answer]:
    return engine.answers(prompts, [GENERATED] * len(prompts))


def as_read(engine: Served, prompts: list[list[int]], answers: list[Answer]) -> list[list[float]]:
    """The scores of the answers' tokens, where they are the end of a prompt."""
    whole = [prompt + answer.tokens for prompt, answer in zip(prompts, answers, strict=True)]
    read = engine.answers(whole, [READ] * len(whole))
    found = []
    for prompt, each in zip(prompts, read, strict=True):
        scores = each.prompt_logprobs[len(prompt) :]
        found.append([score.logprob for score in scores if score is not None])
    return found


def told(answers: list[Answer]) -> list[list[float]]:
    return [[score.logprob for score in answer.logprobs] for answer in answers]


@pytest.mark.parametrize("family", PARITY)
def test_bits_are_equal_where_they_are_promised(tmp_path: pathlib.Path, family: str) -> None:
    """Company, cuts and preemption change nothing of what is generated or read, as `test_invariant_model` shows."""
    model = make_tiny_model(tmp_path, family, **FAMILIES[family]).build()
    model.is_invariant = True
    engine = served(model, **WAYS["in chunks"])
    answers = generated(engine, PROMPTS)
    assert generated(engine, PROMPTS) == answers, "its prompts are hits now"
    assert as_read(served(model, **WAYS["preempted"]), PROMPTS, answers) == told(answers)


@pytest.mark.parametrize("family", ["gemma2", "deepseek_v3"])
def test_in_float32_they_are_equal_but_for_rounding_and_are_those_of_transformers(
    tmp_path: pathlib.Path, family: str
) -> None:
    tiny = make_tiny_model(tmp_path, family, **FAMILIES[family])
    model = tiny.build()
    engines = [served(model, **limits) for limits in WAYS.values()]
    greatest = 0.0
    for engine in (*engines, engines[-1]):  # whose prompts are hits then
        answers = generated(engine, PROMPTS)
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert_scored_as_by(tiny.reference, prompt, answer, num_top=1)
        read = as_read(served(model, **WAYS["in chunks"]), PROMPTS, answers)
        for ours, theirs in zip(told(answers), read, strict=True):
            greatest = max(greatest, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
    assert greatest < ROUNDING
