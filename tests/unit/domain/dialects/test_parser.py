"""Answers of every family become reasoning, text and calls, the same for any cut into pieces, at once and in linear time."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.lenient_json import LenientJson
from nanoserve.domain.text.dialects.parser import Parser
from nanoserve.ports.tool_calls import AnswerEvent, ArgumentsDelta, CallBegun, TextDelta
from tests.unit.domain.dialects.cases import (
    CASES,
    HARMONY_TAIL,
    MALFORMED,
    ROME,
    TOOLS,
    Case,
    call,
    name_of,
    parse,
    parsed,
    reasoning,
    text,
)

JSON = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
SOUP = [*'{}"\\[]()=,:;\n aé', '"name"', "get_weather", "functions."]
PREFILLED = {"gpt-oss": HARMONY_TAIL}
each_case = pytest.mark.parametrize("case", [*CASES, *MALFORMED], ids=name_of)


@each_case
def test_an_answer_says_what_its_family_means(case: Case) -> None:
    assert parsed(parse(case)) == case.said


@each_case
def test_every_cut_into_two_and_into_characters_says_the_same(case: Case) -> None:
    for cut in range(1, len(case.written)):
        assert parsed(parse(case, [cut])) == case.said
    assert parsed(parse(case, range(len(case.written)))) == case.said


@each_case
def test_marks_that_are_control_tokens_are_read_as_such(case: Case) -> None:
    marks = DIALECTS[case.dialect].marks
    tokens = frozenset(
        mark for mark in marks if mark.strip('\n`>"{') == mark and len(mark) > 3 and "=" not in mark
    )
    for cuts in (range(0), range(len(case.written))):
        assert parsed(parse(case, cuts, tokens=tokens)) == case.said


@given(st.data())
@settings(max_examples=300)
def test_any_cut_says_the_same_of_anything_that_a_model_writes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(DIALECTS)))
    marks = sorted(DIALECTS[name].marks)
    soup = data.draw(st.lists(st.sampled_from([*marks, *marks, *SOUP]), max_size=30))
    tokens = frozenset(mark for mark in marks if data.draw(st.booleans()))
    case = Case(
        name, "".join(soup), (), data.draw(st.sampled_from(["", "<think>\n", PREFILLED.get(name, "")]))
    )
    whole = parsed(parse(case, tokens=tokens))
    cuts = data.draw(st.lists(st.integers(1, max(1, len(case.written)))))
    assert parsed(parse(case, cuts, tokens=tokens)) == whole
    assert parsed(parse(case, range(len(case.written)), tokens=tokens)) == whole


@given(st.data())
def test_no_mark_is_ever_text_beside_whole_calls(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(DIALECTS) - {"gpt-oss", "llama-json", "llama-pythonic"})))
    dialect = DIALECTS[name]
    marks = {dialect.reasoning.open, dialect.reasoning.close} if dialect.reasoning else set()
    if dialect.calls is not None and dialect.calls.section is not None:
        marks |= {dialect.calls.section.open, dialect.calls.section.close}
    calls = [case.written for case in CASES if case.dialect == name and case.said == (ROME,)]
    soup = data.draw(
        st.lists(st.sampled_from([*sorted(marks), *calls, "so", " ", "\n", "<", "["]), max_size=20)
    )
    shown = "".join(each.text for each in parsed(parse(Case(name, "".join(soup), ()))) if each.kind == "text")
    assert not any(mark in shown for mark in dialect.marks if len(mark.strip()) > 2)


@given(st.sampled_from(sorted(set(DIALECTS) - {"gpt-oss"})), st.data())
def test_text_is_shown_but_for_what_may_begin_a_mark(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    heads = [mark[:size] for mark in sorted(dialect.marks) for size in range(1, len(mark))]
    written = "So " + data.draw(
        st.lists(st.sampled_from([*heads, "\n", "\n\n\n", "so "]))
        .map("".join)
        .filter(lambda soup: not any(mark in soup for mark in dialect.marks))
    )
    longest = max(map(len, dialect.marks), default=0)
    parser = Parser(dialect, tools=TOOLS)
    shown = ""
    for count, character in enumerate(written, start=1):
        shown += "".join(event.text for event in parser.feed(character) if isinstance(event, TextDelta))
        assert count - len(shown) < longest + 2
        assert written.startswith(shown)
    assert parsed([TextDelta(shown), *parser.close()]) == (text(written),)


@pytest.mark.parametrize("name", sorted(set(DIALECTS) - {"deepseek-r1"}))
def test_a_value_is_shown_within_two_tokens_of_its_first_character(name: str) -> None:
    """Tokens of three characters; the value goes on long behind it."""
    case = next(each for each in CASES if each.dialect == name and "Rome" in each.written)
    written = case.written.replace("Rome", "Rome" * 10)
    parser = Parser(DIALECTS[name], tools=TOOLS, prompt_tail=case.prompt_tail)
    arguments, seen = "", ""
    for start in range(0, written.index("Rome") + 9, 3):
        seen = written[: start + 3]
        arguments += "".join(
            event.text
            for event in parser.feed(written[start : start + 3])
            if isinstance(event, ArgumentsDelta)
        )
    assert "Rom" in arguments, seen


@pytest.mark.parametrize("name", sorted(set(DIALECTS) - {"deepseek-r1"}))
def test_a_long_argument_costs_as_much_by_the_byte_as_a_short_one(name: str) -> None:
    case = next(each for each in CASES if each.dialect == name and "Rome" in each.written)

    def operations(size: int) -> int:
        filling = ('say \\"hi\\" <b> \\n' if "json" in name or "gpt" in name else "say hi <b> \n") * size
        if "json" not in name and name not in {"qwen3-coder", "glm-4.5", "minimax-m2"}:
            filling = filling.replace("\n", " ")
        written = case.written.replace("Rome", filling)
        return _lines_run(Case(name, written, (), case.prompt_tail))

    short, long, longer = operations(4), operations(104), operations(204)
    assert (longer - long) <= 1.2 * (long - short)


@pytest.mark.parametrize(
    ("dialect", "head", "unit", "end"),
    [
        ("qwen3-coder", "", "<tool_cal\n\n<func<think", ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [', '"', "]"),
    ],
    ids=["beginnings of marks", "brackets that never close"],
)
def test_what_leads_nowhere_costs_as_much_by_the_byte(dialect: str, head: str, unit: str, end: str) -> None:
    short, long, longer = (
        _lines_run(Case(dialect, head + unit * size + end * size, ())) for size in (10, 110, 210)
    )
    assert (longer - long) <= 1.2 * (long - short)


def test_one_long_piece_costs_no_more_than_many_short_ones() -> None:
    case = Case("hermes", CASES[2].written.replace("Rome", "x" * 20_000), ())
    assert _lines_run(case, cut=len(case.written)) < _lines_run(case)


def test_no_search_runs_over_text_that_is_not_reached_yet() -> None:
    """A long piece is looked at in portions; without that, every mark in it would be searched for to its end."""
    parser = Parser(DIALECTS["qwen3-coder"], tools=TOOLS)
    assert max(len(event.text) for event in parser.feed("so " * 5_000) if isinstance(event, TextDelta)) < 400


def _lines_run(case: Case, cut: int = 4) -> int:
    """How many lines of Python run while an answer is read in pieces of so many characters."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line" and "dialects" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parse(case, range(0, len(case.written), cut))
    finally:
        sys.settrace(before)
    return count


def test_ids_are_the_models_own_or_made_from_the_seed_in_the_familys_shape() -> None:
    def ids(name: str, written: str, seed: str = "s") -> list[str]:
        parser = Parser(DIALECTS[name], tools=TOOLS, id_seed=seed)
        events: list[AnswerEvent] = [*parser.feed(written), *parser.close()]
        return [event.id for event in events if isinstance(event, CallBegun)]

    hermes = next(
        each.written for each in CASES if each.dialect == "hermes" and each.written.count("<tool_call>") == 2
    )
    first, second = ids("hermes", hermes)
    assert first != second
    assert first.startswith("call_")
    assert ids("hermes", hermes) == [first, second] != ids("hermes", hermes, "t")
    (nine,) = ids("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {}}]')
    assert len(nine) == 9
    assert nine.isalnum()
    assert ids("mistral-v11", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}") == ["a1B2c3D4e"]
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    assert ids("kimi-k2", call.format("functions.f:7") + call.format("f")) == [
        "functions.f:7",
        "functions.f:1",
    ]


def test_a_mark_that_came_letter_by_letter_is_text_where_the_tokenizer_has_it_as_a_token() -> None:
    parser = Parser(DIALECTS["hermes"], tools=TOOLS, tokens=frozenset({"<tool_call>", "</tool_call>"}))
    letters = '<tool_call>{"name": "get_weather"}</tool_call>'
    assert parsed([*parser.feed(letters), *parser.close()]) == (text(letters),)


def test_a_control_token_that_means_nothing_is_no_text_but_stays_within_arguments() -> None:
    tokens = frozenset({"<tool_call>", "</tool_call>", "<|eot|>"})
    parser = Parser(DIALECTS["hermes"], tools=TOOLS, tokens=tokens)
    events = [*parser.feed("a"), *parser.feed("<|eot|>", is_token=True), *parser.feed("b")]
    events += parser.feed("<tool_call>", is_token=True)
    events += parser.feed('{"name": "f", "arguments": {"a": "')
    events += parser.feed("<|eot|>", is_token=True)
    events += parser.feed('"}}')
    events += [*parser.feed("</tool_call>", is_token=True), *parser.close()]
    assert [each.text for each in parsed(events)] == ["ab", "f"]
    assert parsed(events)[1].arguments == {"a": "<|eot|>"}


def test_a_call_ends_reasoning_that_was_not_closed_where_its_mark_is_a_token() -> None:
    calling = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    parser = Parser(
        DIALECTS["qwen3"], tools=TOOLS, tokens=frozenset({"<tool_call>"}), prompt_tail="<think>\n"
    )
    events = [*parser.feed("I call <tool_call> now.\n"), *parser.feed("<tool_call>", is_token=True)]
    events += [*parser.feed(calling), *parser.close()]
    assert parsed(events) == (reasoning("I call <tool_call> now."), ROME)


@pytest.mark.parametrize(
    ("dialect", "written", "arguments"),
    [
        ("mistral-v11", "[TOOL_CALLS]get_weather[ARGS]Rome", "Rome"),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": "Rome"}</tool_call>', "Rome"),
    ],
)
def test_arguments_that_are_no_object_come_as_they_are(dialect: str, written: str, arguments: str) -> None:
    assert parsed(parse(Case(dialect, written, ()))) == (call("get_weather", arguments),)


@given(st.lists(st.sampled_from([*SOUP, "'", "True", "1e", "null", "\n", "u00e9"]), max_size=30))
def test_arguments_that_begin_as_an_object_are_json_whatever_follows(soup: list[str]) -> None:
    arguments = LenientJson.whole("{" + "".join(soup))
    assert isinstance(json.loads(arguments), dict)


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            JSON,
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=10,
        ),
        max_size=4,
    ),
    st.sampled_from([None, 2]),
)
def test_json_passes_unchanged(value: dict[str, Any], indent: int | None) -> None:
    for is_ascii in (True, False):
        written = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
        assert LenientJson.whole(written) == written


def test_without_tools_no_call_is_looked_for() -> None:
    parser = Parser(DIALECTS["qwen3"])
    written = '<tool_call>{"name": "f"}</tool_call>'
    assert parsed([*parser.feed(written), *parser.close()]) == (text(written),)
