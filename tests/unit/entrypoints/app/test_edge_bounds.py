"""Lists that come with an order: bounded, because they are spelled, sent and kept for every prompt of a request."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.entrypoints.app.generation import Reservations
from nanoserve.entrypoints.app.orders import EdgeChecks, Order, ServiceSettings
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams

FACTS = EngineFacts(
    pid=1,
    model="m",
    device="cpu",
    dtype="float32",
    vocab_size=100,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    block_size=4,
    num_blocks=(64,),
)
CHECKS = EdgeChecks(ServiceSettings(model_names=("m",)))


def refusal(prompts: int, **sampling: Any) -> str:
    order = Order(prompt=(1,), sampling=SamplingParams(**sampling))
    with pytest.raises(BadValueError) as raised:
        CHECKS.check_samplings([order] * prompts, FACTS)
    return raised.value.parameter


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_more_ids_than_there_are_tokens_are_refused(name: str) -> None:
    assert refusal(1, **{name: [0] * (FACTS.vocab_size + 1)}) == name


def test_lists_are_counted_for_every_prompt() -> None:
    words = [f"w{number}" for number in range(1000)]
    CHECKS.check_samplings([Order(prompt=(1,), sampling=SamplingParams(bad_words=words))], FACTS)
    assert refusal(1000, bad_words=words) == "prompt"


@pytest.mark.parametrize(
    ("name", "value"),
    [("bad_words", ["a"] * 1025), ("bad_words", ["a" * 16385]), ("stop", ["a"] * 65), ("stop", ["a" * 4097])],
)
def test_texts_are_bounded_in_number_and_length(name: str, value: list[str]) -> None:
    with pytest.raises(BadValueError) as raised:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert raised.value.parameter == name


def test_prompts_times_answers_are_bounded() -> None:
    admission = Reservations(ServiceSettings(model_names=("m",), max_waiting_requests=200))
    admission.take([(128, 1)], rows=4)
    with pytest.raises(BadValueError, match="256 answers"):
        admission.take([(128, 1), (128, 1)], rows=4)
    assert admission.living == 1
