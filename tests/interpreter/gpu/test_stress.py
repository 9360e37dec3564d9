"""Random arrivals, aborts and preemptions for as many steps as half an hour of serving: counts add up, nothing leaks.

A step of a 1B model takes about a millisecond and a half at 64 rows, so half an hour is a million steps; the tiny model takes them
in a fraction of the time, because what is stressed here is the bookkeeping around the arithmetic. `STRESS_STEPS`
sets the number, which is smaller by default.
"""

from __future__ import annotations

import gc
import os
import random
from typing import Any

import pytest
import torch

from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams
from tests.interpreter.gpu.serving import DEVICE, ON_GPU, serve
from tests.served import Answer, Served
from tests.unit.adapters.pytorch.tiny_models import make_prompt, make_tiny_model

STEPS = int(os.environ.get("STRESS_STEPS", "3000" if ON_GPU else "12"))
REMEMBERED = 40
"""Requests whose answers are compared with those that they get alone."""


def _some_params(draw: random.Random) -> SamplingParams:
    shaped = draw.random() < 0.2
    return SamplingParams(
        temperature=draw.choice([0.0, 0.7, 1.2]),
        top_p=draw.choice([1.0, 0.9]),
        top_k=draw.choice([0, 0, 20]),
        max_tokens=draw.randint(1, 40 if ON_GPU else 4),
        repetition_penalty=1.3 if shaped else 1.0,
        logprobs=2 if draw.random() < 0.1 else None,
        logit_bias={3: 2.0} if draw.random() < 0.1 else {},
    )


@pytest.mark.matrix
def test_random_traffic_leaks_nothing_and_changes_no_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    tiny = make_tiny_model(tmp_path_factory.mktemp("model"), "llama")
    model = tiny.build(device=DEVICE)
    cramped: dict[str, Any] = (
        {"num_blocks": 60, "max_num_seqs": 24}
        if ON_GPU
        else {"num_blocks": 4, "max_num_seqs": 4, "max_model_len": 48}
    )
    served = serve(model, depth=3, **cramped)
    draw = random.Random(7)
    alive: dict[str, tuple[list[int], SamplingParams]] = {}
    answers: dict[str, Answer] = {}
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    after_warm_up = 0
    for step in range(STEPS):
        while len(alive) < 40 and draw.random() < 0.5:
            name = str(len(asked))
            prompt = make_prompt(draw.randint(1, 90 if ON_GPU else 20), vocab_size=128, seed=len(asked) % 97)
            asked[name] = alive[name] = (prompt, _some_params(draw))
            answers[name] = Answer()
            served.add(name, *asked[name], seed=int(name))
        if alive and draw.random() < 0.05:
            served.engine.abort(draw.choice(list(alive)))
        served.turn(answers)
        alive = {name: each for name, each in alive.items() if answers[name].finish_reason is None}
        if ON_GPU and step == STEPS // 2:
            after_warm_up = torch.cuda.memory_allocated()
    _drain(served, alive)
    assert served.has_preempted
    assert all(pool.num_free == pool.num_blocks for pool in served.engine.scheduler.cache.allocators)
    if ON_GPU:
        gc.collect()
        assert torch.cuda.memory_allocated() <= after_warm_up + (64 << 20)
    _compare_with_alone(served, asked, answers)


def _drain(served: Served, alive: dict[str, tuple[list[int], SamplingParams]]) -> None:
    for name in list(alive):
        served.engine.abort(name)
    while served.engine.has_work:
        served.engine.turn()


def _compare_with_alone(
    served: Served, asked: dict[str, tuple[list[int], SamplingParams]], answers: dict[str, Answer]
) -> None:
    """Some that ran to their end, aborted ones left out, get the same tokens alone."""
    done = [name for name, answer in answers.items() if answer.finish_reason is FinishReason.LENGTH]
    for name in done[:REMEMBERED] if ON_GPU else done[:2]:
        prompt, params = asked[name]
        assert served.texts([prompt], [params], first_seed=int(name)) == [answers[name].tokens]
