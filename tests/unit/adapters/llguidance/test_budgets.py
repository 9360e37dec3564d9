"""Budgets of reasoning: wherever they end, within a mark that is partly written too, exactly the rest of the mark follows, and then the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoserve.adapters.llguidance.answers import Answer
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice
from tests.unit.adapters.llguidance.dialect_vocabulary import Vocabulary
from tests.unit.adapters.llguidance.vocabularies import allowed, patient, plain, vocabulary_of

SCHEMA: Final[dict[str, Any]] = {"enum": ["red", "blue"]}
JSON: Final = Constraint("json_schema", json.dumps(SCHEMA))
LETTERS: Final = "</thinkü"
HARMONY: Final = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
)
HEAD: Final = "<|channel|>final<|message|>"
CALLED: Final = Tool(
    name="f", parameters={"type": "object", "properties": {}, "additionalProperties": False}, strict=True
)


@attrs.frozen
class Subject:
    """A dialect over a vocabulary, and what its reasoning stands between."""

    dialect: TokenizedDialect
    grammars: LLGrammars
    ids: dict[bytes, int]
    end: int
    open: str = "<think>"
    close: str = "</think>"

    def matcher(self, constraint: Constraint | None) -> Answer:
        assert constraint is not None
        pending = self.grammars.compile(constraint)
        while not pending.done():
            self.grammars.rest()
        return pending.result().matcher()

    def answer(self, matcher: Answer, wished: Sequence[bytes]) -> list[bytes]:
        """What a model says that wishes to say this, and else says the first token that it may; its end left out."""
        texts = {token: text for text, token in self.ids.items()}
        said: list[bytes] = []
        while len(said) < 300:
            wish = self.ids[wished[len(said)]] if len(said) < len(wished) else self.end
            may = allowed(self.grammars, matcher)
            assert may, said
            token = wish if wish in may else min(may - {self.end}, default=self.end)
            if token == self.end:
                return said
            said.append(texts[token])
            assert self.grammars.consume([(matcher, token)]) == {}
        raise AssertionError(said)


def of_bytes(name: str, marks: Sequence[str], *, is_harmony: bool = False) -> Subject:
    vocabulary = Vocabulary(marks)
    grammars = patient(vocabulary.inner, len(vocabulary.tokens))
    dialect = TokenizedDialect(DIALECTS[name], {token: mark for mark, token in vocabulary.ids.items()})
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    around = (
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
        if is_harmony
        else ("<think>", "</think>")
    )
    return Subject(dialect, grammars, ids, vocabulary.eos_token_id, *around)


def of_merges() -> Subject:
    """The built-in model's vocabulary, in which `ink` and `hi` are tokens."""
    tokenizer = plain()
    vocabulary, size = vocabulary_of(tokenizer), tokenizer.get_vocab_size()
    grammars = patient(vocabulary, size)
    ids = {
        vocabulary.decode_bytes([token]): token
        for token in range(size)
        if not vocabulary.is_special_token(token)
    }
    return Subject(TokenizedDialect(DIALECTS["qwen3"], {}), grammars, ids, vocabulary.eos_token)


SUBJECTS: Final = {
    "text": of_bytes("qwen3", ()),
    "tokens": of_bytes("qwen3", ("<think>", "</think>")),
    "merges": of_merges(),
    "channels": of_bytes("gpt-oss", HARMONY, is_harmony=True),
}


def cut(subject: Subject, text: str, draw: st.DataObject | None = None) -> list[bytes]:
    """Into tokens of drawn length or the longest ones, marks that are tokens as these."""
    rest, found = text.encode(), list[bytes]()
    marks = [mark.encode() for mark in subject.dialect.control_tokens.values()]
    while rest:
        mark = next((each for each in marks if rest.startswith(each)), None)
        options = [rest[:length] for length in range(1, 9) if rest[:length] in subject.ids]
        found.append(mark or (draw.draw(st.sampled_from(options)) if draw else options[-1]))
        rest = rest[len(found[-1]) :]
    return found


def shown(subject: Subject, pieces: Sequence[bytes] | str) -> str:
    """Text in which a mark that is a token is one character that no text has, and half a character another one."""
    text = pieces if isinstance(pieces, str) else b"".join(pieces).decode(errors="surrogateescape")
    for token, mark in subject.dialect.control_tokens.items():
        text = text.replace(mark, chr(0xE000 + token))
    return text


def forced(close: str, written: str) -> str:
    """Reasoning whose budget ends behind what is written, up to the end of the mark."""
    begun = next(each for each in range(len(close), -1, -1) if written.endswith(close[:each]))
    return written + close[begun:]


@pytest.mark.parametrize("name", SUBJECTS)
@given(
    thought=st.text(LETTERS, max_size=6), budget=st.integers(1, 20), is_opened=st.booleans(), draw=st.data()
)
def test_the_mark_is_written_once_wherever_the_budget_ends(
    name: str, thought: str, budget: int, is_opened: bool, draw: st.DataObject
) -> None:
    subject = SUBJECTS[name]
    assume(subject.close not in thought)
    head = [] if is_opened else cut(subject, subject.open)
    inside = [*cut(subject, thought, draw), *cut(subject, subject.close, draw)]
    tail = subject.open if is_opened else "<|start|>assistant"
    matcher = subject.matcher(subject.dialect.behind_reasoning(JSON, prompt_tail=tail, budget=budget))
    said = shown(subject, subject.answer(matcher, [*head, *inside]))
    written = shown(subject, head) + forced(shown(subject, subject.close), shown(subject, inside[:budget]))
    assert said.startswith(written)
    answer = said.removeprefix(written).removeprefix(shown(subject, HEAD) if name == "channels" else "")
    assert json.loads(answer) in SCHEMA["enum"]


def said_with_tools(choice: ToolChoice, wished: Sequence[str]) -> str:
    """What gpt-oss says with a budget of two tokens."""
    subject = SUBJECTS["channels"]
    constraint = subject.dialect.grammar(
        (CALLED,), choice, schema=SCHEMA, prompt_tail="<|start|>assistant", budget=2
    )
    pieces = [piece for each in wished for piece in cut(subject, each)]
    return b"".join(subject.answer(subject.matcher(constraint), pieces)).decode()


def test_behind_the_analysis_of_channels_come_calls_or_the_final_message_and_no_more_analysis() -> None:
    begun, ended = "<|channel|>analysis<|message|>ab", "<|end|><|start|>assistant"
    called = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    required, free = ToolChoice(CallMode.REQUIRED), ToolChoice()
    assert said_with_tools(required, [begun, "cd"]) == begun + ended + called
    assert said_with_tools(free, [begun, ended, called]) == begun + ended + called
    for budget_is_left in (begun.removesuffix("b"), begun):
        said = said_with_tools(free, [budget_is_left, ended, "<|channel|>analysis<|message|>"])
        assert said.count("analysis") == 1
        assert said.startswith(budget_is_left + ended + "<|channel|>")


@pytest.mark.parametrize("name", ["text", "tokens"])
@pytest.mark.parametrize(
    ("constraint", "wished"),
    [
        (Constraint("regex", "[ab]{2}c"), "abc"),
        (Constraint("choice", '["yes", "no"]'), "no"),
        (Constraint("gbnf", 'root ::= "x" | "y"'), "y"),
    ],
    ids=str,
)
def test_any_format_follows_reasoning_that_the_prompt_has_begun(
    name: str, constraint: Constraint, wished: str
) -> None:
    subject = SUBJECTS[name]
    limited = subject.dialect.behind_reasoning(constraint, prompt_tail="<think>\n", budget=3)
    for thought in ("a", "abc", "abcdef"):
        first = thought[:3] + subject.close
        said = b"".join(subject.answer(subject.matcher(limited), cut(subject, first + wished)))
        assert said.decode() == first + wished


def test_copies_keep_the_count() -> None:
    subject = SUBJECTS["text"]
    first = subject.matcher(subject.dialect.behind_reasoning(JSON, prompt_tail="<think>", budget=4))
    for letter in b"ab<":
        assert subject.grammars.consume([(first, letter)]) == {}
    copied, other = (Answer(first.grammar, first.said) for _ in range(2))
    assert b"".join(subject.answer(other, [b"!"])).startswith(b"!</think>")
    for each in (first, copied):
        for letter in b"/think":
            assert subject.grammars.consume([(each, letter)]) == {}
        assert allowed(subject.grammars, each)
        assert not each.may_end()
        again = subject.answer(Answer(each.grammar, each.said), [])
        assert json.loads(b"".join(again).removeprefix(b">")) in SCHEMA["enum"]


@pytest.mark.parametrize("tail", ["<think>", ""])
@pytest.mark.parametrize("tools", [(), (CALLED,)], ids=["text", "calls"])
@pytest.mark.parametrize("name", ["text", "merges"])
def test_reasoning_is_no_call_and_does_not_begin_again(name: str, tools: tuple[Tool, ...], tail: str) -> None:
    subject = SUBJECTS[name]
    constraint = subject.dialect.grammar(tools, ToolChoice(), prompt_tail=tail, budget=40)
    head = ("" if tail else "<think>") + "<tool_call>a</think>"
    wished = cut(subject, f"{head}b <think>c")
    said = b"".join(subject.answer(subject.matcher(constraint), wished)).decode()
    assert said.startswith(f"{head}b <think")
    assert "<think>" not in said.removeprefix(head)
