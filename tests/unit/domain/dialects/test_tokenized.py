"""Choosing a dialect, reading pieces of text with their tokens, and earlier calls in the form that templates take."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.domain.text.dialects.families import DIALECTS, FAMILIES
from nanoserve.domain.text.dialects.parser import split
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect, choose_dialect
from nanoserve.ports.driven import DialectFacts
from nanoserve.ports.errors import ModelLoadError
from tests.unit.domain.dialects.cases import ROME, TOOLS, parsed, reasoning, text

OPEN, CLOSE, END = 100, 101, 2
CONTROL = {OPEN: "<tool_call>", CLOSE: "</tool_call>", END: "<|im_end|>"}
WRITTEN = '{"name": "get_weather", "arguments": {"city": "Rome"}}'


def test_a_template_decides_before_the_models_type_and_a_name_before_both() -> None:
    template = DialectFacts(chat_template="... <tool_call> ... <think>", model_type="gpt_oss")
    assert _name(choose_dialect(template)) == "qwen3"
    assert _name(choose_dialect(template, "mistral")) == "mistral"
    assert choose_dialect(template, "none") is None
    assert _name(choose_dialect(DialectFacts(model_type="gpt_oss"))) == "gpt-oss"
    assert choose_dialect(DialectFacts(chat_template="{{ messages }}", model_type="gpt2")) is None


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ModelLoadError, match=r"klingon.*hermes.*none"):
        choose_dialect(DialectFacts(), "klingon")


def test_signs_of_a_family_do_not_hide_one_behind_it() -> None:
    for place, family in enumerate(FAMILIES):
        shown = " ".join(family.signs)
        first = next(each for each in FAMILIES if all(sign in shown for sign in each.signs))
        assert FAMILIES.index(first) == place


def test_control_tokens_are_the_dialects_marks_and_what_is_no_text() -> None:
    added = {**CONTROL, 7: "    ", 8: "<think>"}
    chosen = choose_dialect(DialectFacts(added_tokens=added, special=frozenset({END})), "hermes")
    assert chosen is not None
    assert chosen.control_tokens == CONTROL


def test_pieces_are_split_around_their_control_tokens() -> None:
    assert split("ab", [5, 6], CONTROL) == [("ab", [5, 6])]
    assert split("a<tool_call>b</tool_call>", [5, OPEN, 6, CLOSE], CONTROL) == [
        ("a", [5]),
        ("<tool_call>", None),
        ("b", [6]),
        ("</tool_call>", None),
    ]
    assert split("bye", [5, END], CONTROL) == [("bye", [5])]
    assert split("<tool_call>", [5, 6, 7], CONTROL) == [("<tool_call>", [5, 6, 7])]


def test_a_parser_reads_pieces_with_their_tokens() -> None:
    dialect = TokenizedDialect(DIALECTS["hermes"], CONTROL)
    assert dialect.has_calls is True
    assert not dialect.has_reasoning
    parser = dialect.parser(tools=TOOLS)
    events = parser.push("<tool", [5, 6])
    events += parser.push("_call> is the mark.\n<tool_call>", [7, 8, OPEN])
    events += parser.push(WRITTEN, [9, 10])
    events += parser.push("</tool_call>", [CLOSE])
    assert parser.num_calls == 1
    assert parsed(events + parser.close()) == (text("<tool_call> is the mark."), ROME)


def test_reasoning_may_have_been_opened_by_the_prompt() -> None:
    dialect = TokenizedDialect(DIALECTS["qwen3"], {})
    assert dialect.has_reasoning
    parser = dialect.parser(prompt_tail="<|im_start|>assistant\n<think>\n")
    assert parsed([*parser.push("Hm.</think>Yes.", [1, 2]), *parser.close()]) == (
        reasoning("Hm."),
        text("Yes."),
    )


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("qwen3", '{"a": 1}', {"a": 1}),
        ("qwen3", "", {}),
        ("qwen3", {"a": 1}, {"a": 1}),
        ("qwen3", "no JSON", "no JSON"),
        ("qwen3", "[1]", "[1]"),
        ("deepseek-v3", {"a": "é"}, '{"a": "é"}'),
        ("deepseek-v3", '{"a":1}', '{"a":1}'),
    ],
)
def test_earlier_arguments_are_an_object_or_a_text_as_the_template_reads_them(
    name: str, given: Any, wanted: Any
) -> None:
    assert DIALECTS[name].earlier_arguments is ("text" if name == "deepseek-v3" else "object")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
    ]
    before = repr(turns)
    made = TokenizedDialect(DIALECTS[name], {}).messages(turns)
    assert made[0] == turns[0]
    assert made[1]["tool_calls"] == [{**call, "function": {"name": "f", "arguments": wanted}}]
    assert repr(turns) == before


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("mistral", "call_1", None),
        ("mistral", "a1B2c3D4e", "a1B2c3D4e"),
        ("kimi-k2", "call_1", "functions.f:0"),
        ("kimi-k2", "functions.f:4", "functions.f:4"),
        ("hermes", "call_1", "call_1"),
    ],
)
def test_earlier_ids_have_the_shape_that_the_template_takes_and_results_keep_their_calls(
    name: str, given: str, wanted: str | None
) -> None:
    call = {"id": given, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": given, "content": "a"},
        {"role": "tool", "tool_call_id": "of no call", "content": "a"},
    ]
    said, answered, stray = TokenizedDialect(DIALECTS[name], {}).messages(turns)
    made = said["tool_calls"][0]["id"]
    assert made == answered["tool_call_id"]
    assert stray == turns[2]
    if wanted is None:
        assert len(made) == 9
        assert made.isalnum()
    else:
        assert made == wanted


def _name(chosen: TokenizedDialect | None) -> str | None:
    return None if chosen is None else chosen.dialect.name


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        (["<th", "ink", ">\n", "a", "b<", "c", "</", "thi", "nk", ">x", "y"], 3),
        (["<think>", "\n", "a", "</", "b", "\n", "</think>", "\n", "c"], 5),
        (["x", "<think", ">a", "b</think>"], 2),
        (["<think>", "a", "</", "thi"], 3),
        (["x", "y</think>"], 0),
    ],
)
@pytest.mark.parametrize("with_end", [False, True])
def test_reasoning_is_counted_by_tokens_whose_marks_are_text(
    pieces: list[str], count: int, with_end: bool
) -> None:
    """As they come one by one, all at once, and letter by letter, where stop strings hold the rest of a token back.

    A control token between them changes nothing.
    """
    dialect = TokenizedDialect(DIALECTS["qwen3"], {END: "<|im_end|>"})
    assert dialect.counts_by_text
    assert not TokenizedDialect(DIALECTS["qwen3"], {7: "<think>", 8: "</think>"}).counts_by_text
    texts = dict(enumerate(pieces, 10))
    found = []
    one_by_one = [(text, [token]) for token, text in texts.items()]
    letters = [
        (letter, [token] if place == len(text) else [])
        for token, text in texts.items()
        for place, letter in enumerate(text, 1)
    ]
    for steps in (one_by_one, [("".join(pieces), list(texts))], letters):
        parser = dialect.parser(token_text=texts.__getitem__)
        events = [event for text, ids in steps for event in parser.push(text, ids)]
        if with_end:
            events += parser.push("<|im_end|>", [END])
        found.append((parsed(events + parser.close()), parser.num_reasoning_tokens))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == count
