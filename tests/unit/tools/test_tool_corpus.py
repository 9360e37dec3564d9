"""Conversations with tools and thoughts: what the template renders, calls that fit their schemas, sums that are right."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nanoserve.adapters.embedded import model_folder
from nanoserve.domain.text.dialects.families import dialect_of
from tools.embedded_model.corpus.documents import BOS, EOS, document
from tools.embedded_model.corpus.messages import Talk, assistant, user
from tools.embedded_model.corpus.thoughts import draw_thought, steps
from tools.embedded_model.corpus.tool_talks import extraction, tool_talk
from tools.embedded_model.corpus.toolbox import said_result
from tools.embedded_model.rows import NOT_LEARNED, targets_of

SEEDS = st.integers(min_value=0, max_value=2**32)


@cache
def tokenizer() -> Any:
    """Loosely typed, because transformers annotates its template method for messages that are texts only."""
    return AutoTokenizer.from_pretrained(model_folder())


def test_the_template_says_which_dialect_the_model_has() -> None:
    template = (model_folder() / "chat_template.jinja").read_text(encoding="utf-8")
    dialect = dialect_of(template, "llama")
    assert dialect is not None
    assert dialect.name == "qwen3"


@given(seed=SEEDS)
def test_a_conversation_is_what_the_shipped_template_renders_and_its_calls_fit(seed: int) -> None:
    talk, _ = tool_talk(random.Random(seed))
    rendered = BOS + "".join(f"<|{role}|>{text}{EOS}" for role, text in talk.turns())
    assert (
        tokenizer().apply_chat_template(list(talk.messages), tools=list(talk.tools), tokenize=False)
        == rendered
    )
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in talk.tools}
    for message in talk.messages:
        for call in message.get("tool_calls", ()):
            schema = schemas[call["function"]["name"]]
            assert set(schema["required"]) <= set(call["function"]["arguments"]) <= set(schema["properties"])


def test_thoughts_are_opened_by_the_template_and_dropped_before_the_last_question() -> None:
    talk = Talk([user("1"), assistant("A", "first"), user("2"), assistant("B", "second")])
    messages = list(talk.messages)
    assert [text for _, text in talk.turns()] == ["1", "A", "2", "<think>\nsecond\n</think>\n\nB"]
    render = tokenizer().apply_chat_template
    opened = str(render(messages[:3], tokenize=False, add_generation_prompt=True, enable_thinking=True))
    assert opened + "second\n</think>\n\nB<|end|>" == render(messages, tokenize=False)
    assert str(render(messages[:3], tokenize=False, add_generation_prompt=True)).endswith("<|assistant|>")


@given(seed=SEEDS)
def test_thoughts_and_extractions_are_whole(seed: int) -> None:
    thought = draw_thought(random.Random(seed))
    assert all(part.strip() == part != "" for part in (thought.question, thought.thought, thought.answer))
    asked, answer = extraction(random.Random(seed))
    assert asked.endswith(".")
    assert answer.startswith("{")


@given(left=st.integers(20, 99), sign=st.sampled_from("+-*"), right=st.integers(0, 20))
def test_every_step_of_a_sum_is_right(left: int, sign: str, right: int) -> None:
    for a, each, b, result in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", steps(left, sign, right)):
        assert int(result) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[each]


def test_results_are_said_by_their_form() -> None:
    assert (
        said_result('{"time": "18:30", "stops": ["Rome", "Oslo"]}')
        == "The time is 18:30 and the stops are Rome and Oslo."
    )
    assert said_result("no rain") == "No rain."
    assert said_result("42") == "The answer is 42."


def test_a_course_leaves_the_other_one_as_it_is() -> None:
    assert document(3).rendered() != document(3, course="tools").rendered()
    assert "<tools>" not in "".join(document(index).rendered() for index in range(60))


def test_what_the_template_writes_before_a_thought_is_not_learned() -> None:
    rows = np.array([[0, 5, 7, 8, 9, 5, 7, 7]], dtype=np.uint16)
    assert targets_of(rows, [5, 7, 8]).tolist() == [[5, NOT_LEARNED, NOT_LEARNED, 9, 5, 7, 7]]
