"""The door: who is refused, under which name, and that nothing of them is kept."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.ports.errors import (
    BadValueError,
    DuplicateRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
    RequestTooLargeError,
    UnknownRequestClassError,
)
from tests.unit.domain.world import BATCH, INTERACTIVE, World, oracle


def test_refusals_are_named_and_queue_nothing() -> None:
    world = World(num_blocks=6, max_model_len=30, classes=(BATCH,))
    world.add("alive", range(4), request_class="batch")
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (PromptTooLongError, {"prompt": range(30)}),
        (RequestTooLargeError, {"prompt": range(10), "max_tokens": 16}),
        (RequestTooLargeError, {"prompt": range(4), "max_tokens": None}),
        (UnknownRequestClassError, {"prompt": range(4), "request_class": "default"}),
        (QueueFullError, {"prompt": range(4), "n": 4}),
        (DuplicateRequestError, {"prompt": range(4), "name": "alive"}),
        (BadValueError, {"prompt": range(4), "logprobs": 21}),
        (BadValueError, {"prompt": range(4), "prompt_logprobs": 21}),
        (BadValueError, {"prompt": ()}),
        (BadValueError, {"prompt": (1000,)}),
        (BadValueError, {"prompt": (-1,)}),
        (BadValueError, {"prompt": (1.0,)}),
        (BadValueError, {"prompt": (True,)}),
        (BadValueError, {"prompt": (7, 0, False)}),
        (BadValueError, {"prompt": range(4), "stop_token_ids": [1000]}),
        (BadValueError, {"prompt": range(4), "allowed_token_ids": [1000]}),
        (BadValueError, {"prompt": range(4), "logit_bias": {1000: 1.0}}),
        (BadValueError, {"prompt": range(4), "bad_token_sequences": ((1, 1000),)}),
    ]
    for error, fields in cases:
        settings = {"name": "new", "request_class": "batch"} | fields
        with pytest.raises(error) as caught:
            world.add(settings.pop("name"), settings.pop("prompt"), **settings)
        assert type(caught.value) is error
        assert isinstance(caught.value, RequestRefusedError | BadValueError)
        scheduler = world.scheduler
        assert (len(scheduler.table.waiting), len(scheduler.table.requests), scheduler.counters.accepted) == (
            1,
            1,
            1,
        )
    world.run()
    assert world.answer("alive").token_ids == oracle(range(4), 8)


def test_the_largest_request_that_is_let_in_is_served() -> None:
    world = World(num_blocks=6, max_model_len=30)
    world.add("a", range(10), max_tokens=15)
    world.run()
    assert world.answer("a").token_ids == oracle(range(10), 15)


def test_a_key_may_be_used_again_when_its_request_has_ended() -> None:
    world = World()
    for _ in range(2):
        world.add("a", range(4), max_tokens=2)
        world.run()
        assert world.answer("a").token_ids == oracle(range(4), 2)


def test_the_queue_bound_counts_every_sequence_of_a_request() -> None:
    world = World(classes=(INTERACTIVE, BATCH))
    world.add("a", range(4), n=3, request_class="batch")
    with pytest.raises(QueueFullError, match="too many sequences: 3 waiting and room for 4"):
        world.add("b", range(4), n=2, request_class="batch")
    world.add("c", range(4), request_class="batch")
    with pytest.raises(QueueFullError):
        world.add("d", range(4), request_class="batch")
    world.add("e", range(4), n=8)
    assert world.scheduler.table.waiting.length("batch") == 4
    assert len(world.scheduler.table.waiting) == 12


@pytest.mark.parametrize("vocab_size", [1, 5, 128_256, 2**31 - 1])
def test_one_wrong_id_anywhere_in_a_long_prompt_is_found_and_named(vocab_size: int) -> None:
    inside = [number % vocab_size for number in range(300)] + [vocab_size - 1] * 300
    world = World(vocab_size=vocab_size, num_blocks=400, max_model_len=1000)
    world.add("whole", inside, max_tokens=1)
    for wrong in (-1, vocab_size, vocab_size + 1, 2**31, 2**32 - 1, 2**32, 10**30, 0.5, "1", None):
        for place in (0, 299, 599):
            prompt: list[Any] = [*inside[:place], wrong, *inside[place + 1 :]]
            with pytest.raises(BadValueError, match=rf"prompt: token id {wrong!r} is outside the vocabulary"):
                world.add("broken", prompt, max_tokens=1)
