"""Why and where an answer ends, seen from the client."""

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


def ask(*, depth: int = 1, text: bool = False, **kwargs: Any) -> Answer:
    world = World(depth=depth, tokenizer=LETTERS if text else None)
    world.add("a", PROMPT, **({"max_tokens": 12} | kwargs))
    world.run()
    return world.answer("a")


def stop_of(answer: Answer) -> str | int | None:
    assert answer.last is not None
    return answer.last.stop


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_length(depth: int) -> None:
    answer = ask(depth=depth)
    assert (answer.token_ids, answer.reason, stop_of(answer)) == (SAID, FinishReason.LENGTH, None)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 3, 11])
def test_end_of_sequence_is_counted_and_names_no_stop(depth: int, at: int) -> None:
    answer = ask(depth=depth, text=True, eos=[SAID[at]])
    assert (answer.token_ids, answer.text) == (SAID[: at + 1], TEXT[:at])
    assert (answer.reason, stop_of(answer)) == (FinishReason.STOP, None)
    assert answer.last is not None
    assert answer.last.num_generated == at + 1


def test_end_of_sequence_on_the_last_budgeted_token_is_a_stop() -> None:
    assert ask(max_tokens=4, eos=[SAID[3]]).reason is FinishReason.STOP
    assert ask(max_tokens=4, eos=[SAID[4]]).reason is FinishReason.LENGTH


def test_end_of_sequence_on_the_last_token_of_the_context_is_a_stop() -> None:
    for stop, reason in ((3, FinishReason.STOP), (4, FinishReason.LENGTH)):
        world = World(max_model_len=9)
        world.add("a", PROMPT, max_tokens=None, eos=[SAID[stop]])
        world.run()
        assert (world.answer("a").reason, len(world.answer("a").token_ids)) == (reason, 4)


def test_ignored_end_of_sequence_goes_on() -> None:
    answer = ask(eos=[SAID[3]], ignore_eos=True)
    assert (answer.token_ids, answer.reason) == (SAID, FinishReason.LENGTH)


def test_a_stop_token_id_is_reported_and_not_printed() -> None:
    answer = ask(text=True, stop_token_ids=[SAID[3]], ignore_eos=True)
    assert (answer.token_ids, answer.text) == (SAID[:4], TEXT[:3])
    assert (answer.reason, stop_of(answer)) == (FinishReason.STOP, SAID[3])


def test_a_stop_token_is_printed_where_stops_are_included() -> None:
    answer = ask(text=True, stop_token_ids=[SAID[3]], include_stop_str_in_output=True)
    assert (answer.token_ids, answer.text) == (SAID[:4], TEXT[:4])


@pytest.mark.parametrize(("min_tokens", "count"), [(0, 4), (3, 4), (4, 12), (12, 12)])
def test_stop_ids_count_only_behind_min_tokens(min_tokens: int, count: int) -> None:
    assert len(ask(eos=[SAID[3]], min_tokens=min_tokens).token_ids) == count


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_over_two_tokens(depth: int, include: bool) -> None:
    answer = ask(depth=depth, text=True, stop=[TEXT[4:6]], include_stop_str_in_output=include, logprobs=0)
    first = TEXT.index(TEXT[4:6])
    end = first + 2 if include else first
    assert (answer.text, answer.token_ids, answer.logprobs) == (TEXT[:end], SAID[:end], SAID[:end])
    assert (answer.reason, stop_of(answer)) == (FinishReason.STOP, TEXT[4:6])
    assert answer.last is not None
    assert answer.last.num_generated == first + 2


def test_a_stop_string_on_the_last_budgeted_token_is_a_stop() -> None:
    world = World(tokenizer=LETTERS)
    stop = TEXT[2:6]
    assert TEXT.index(stop) == 2
    world.add("a", PROMPT, max_tokens=6, stop=[stop])
    world.run()
    answer = world.answer("a")
    assert (answer.text, answer.reason, stop_of(answer)) == (TEXT[:2], FinishReason.STOP, stop)
    finished = world.engine._scheduler.tally.finished
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


def test_without_detokenizing_the_ids_come_alone() -> None:
    answer = ask(text=True, detokenize=False, eos=[SAID[3]])
    assert (answer.token_ids, answer.text) == (SAID[:4], "")
