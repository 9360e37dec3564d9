"""When an answer ends, seen from the client; what it then says is checked by the state machine, stop by stop."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import FinishReason
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import Answer, World, oracle

PROMPT = range(5)
SAID = oracle(PROMPT, 12)
LETTERS = ByteTokenizer([chr(97 + token % 26).encode() for token in range(1000)])
TEXT = LETTERS.decode(SAID)


def ask(*, text: bool = False, max_model_len: int = 96, **kwargs: Any) -> Answer:
    world = World(tokenizer=LETTERS if text else None, max_model_len=max_model_len)
    world.add("a", PROMPT, **({"max_tokens": 12} | kwargs))
    world.run()
    return world.answer("a")


@pytest.mark.parametrize("bound", [{"max_tokens": 4}, {"max_tokens": None, "max_model_len": 9}], ids=str)
def test_end_of_sequence_on_the_last_possible_token_is_a_stop(bound: dict[str, Any]) -> None:
    for stop, reason in ((3, FinishReason.STOP), (4, FinishReason.LENGTH)):
        answer = ask(eos=[SAID[stop]], **bound)
        assert (answer.reason, len(answer.token_ids)) == (reason, 4)


def test_a_stop_string_on_the_last_budgeted_token_is_a_stop() -> None:
    world = World(tokenizer=LETTERS)
    stop = TEXT[2:6]
    assert TEXT.index(stop) == 2
    world.add("a", PROMPT, max_tokens=6, stop=[stop])
    world.run()
    answer = world.answer("a")
    assert answer.last is not None
    assert (answer.text, answer.reason, answer.last.stop) == (TEXT[:2], FinishReason.STOP, stop)
    finished = world.scheduler.counters.finished
    assert (finished[FinishReason.STOP], finished[FinishReason.LENGTH]) == (1, 0)


def test_a_held_back_prefix_is_shown_when_the_answer_ends() -> None:
    answer = ask(text=True, max_tokens=3, stop=[TEXT[1:3] + "-never"])
    assert (answer.text, answer.reason) == (TEXT[:3], FinishReason.LENGTH)
    assert answer.pieces == [TEXT[0], TEXT[1:3]]


def test_the_last_event_comes_with_the_last_token() -> None:
    cases: list[dict[str, Any]] = [{"max_tokens": 3}, {"eos": [SAID[2]]}, {"stop": [TEXT[:3]]}]
    for kwargs in cases:
        world = World(tokenizer=LETTERS)
        world.add("a", PROMPT, **kwargs)
        for _ in range(3):
            assert world.answer("a").reason is None
            world.turn()
        assert world.answer("a").reason is not None
        assert not world.engine.has_work


def test_no_event_is_empty_but_the_last() -> None:
    world = World(tokenizer=LETTERS)
    world.add("a", PROMPT, max_tokens=12, stop=[TEXT[3:6] + "-never"])
    world.run()
    assert all(world.answer("a").pieces[:-1])


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(BadValueError, match="stop"):
        ask(stop=["x"])
