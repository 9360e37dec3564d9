"""Grammars of calls: they take what families write, refuse what schemas forbid, and all they allow parses into valid calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nanoserve.domain.text.dialects.dialect import NamedCall, Region, XmlArguments
from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.parser import Parser
from nanoserve.domain.text.dialects.tokenized import TokenizedDialect
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice
from tests.unit.adapters.llguidance.dialect_vocabulary import Vocabulary
from tests.unit.domain.dialects.cases import HARMONY_TAIL, TOOLS, WRITERS, Said, parsed, pieces

STRICT = (
    Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Rome", "Oslo"]},
                "days": {"$ref": "#/$defs/days"},
                "exact": {"type": "boolean"},
            },
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
        strict=True,
    ),
    Tool(
        name="stop-all",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
        strict=True,
    ),
)
SCHEMAS = {tool.name: tool.parameters for tool in STRICT}
ROME = ("get_weather", {"city": "Rome", "days": 3})
STOP: tuple[str, dict[str, Any]] = ("stop-all", {})
CALLING = sorted(WRITERS)
SEVERAL = sorted(set(WRITERS) - {"gpt-oss"})
REQUIRED = ToolChoice(CallMode.REQUIRED)
each_calling = pytest.mark.parametrize("name", CALLING)
as_tokens_or_text = pytest.mark.parametrize("as_tokens", [True, False], ids=["tokens", "text"])


class Subject:
    """A dialect, and a vocabulary whose tokens its marks are or are not."""

    def __init__(self, name: str, *, as_tokens: bool = True) -> None:
        dialect = DIALECTS[name]
        marks = [mark for mark in sorted(dialect.marks) if mark[0] in "<[" and mark[-1] in ">]"]
        self.name = name
        self.vocabulary = Vocabulary(marks if as_tokens or name == "gpt-oss" else [])
        self.dialect = TokenizedDialect(dialect, {token: mark for mark, token in self.vocabulary.ids.items()})
        self.prompt_tail = HARMONY_TAIL if dialect.channels is not None else _closed(dialect.reasoning)

    def lark(self, choice: ToolChoice, tools: tuple[Tool, ...] = STRICT) -> str:
        constraint = self.dialect.grammar(tools, choice, prompt_tail=self.prompt_tail)
        assert constraint is not None
        assert constraint.kind == "lark"
        self.after = [self.vocabulary.tokens[token].decode() for token in constraint.after]
        return constraint.text

    def accepts(self, lark: str, written: str) -> bool:
        """The end-of-sequence token is no part of an answer."""
        return self.vocabulary.accepts(lark, written.removesuffix("<|call|>"))

    def writes(self, *calls: tuple[str, Any]) -> str:
        return WRITERS[self.name](*calls)

    def read(self, written: str) -> tuple[Said, ...]:
        tokens = frozenset(self.vocabulary.ids)
        parser = Parser(self.dialect.dialect, tools=STRICT, tokens=tokens, prompt_tail=self.prompt_tail)
        events = [
            event
            for piece, is_token in pieces(written, (), tokens)
            for event in parser.feed(piece, is_token=is_token)
        ]
        return parsed([*events, *parser.close()])


def _fit(call: Said) -> bool:
    """Whether arguments are what `STRICT` asks for."""
    arguments = call.arguments
    if call.text == "stop-all":
        return bool(arguments == {})
    return (
        {"city"} <= set(arguments) <= {"city", "days", "exact"}
        and arguments["city"] in {"Rome", "Oslo"}
        and arguments.get("days", 1) in range(1, 10)
        and isinstance(arguments.get("exact", True), bool)
    )


def _closed(region: Region | None) -> str:
    return f"{region.open}\n\n{region.close}\n\n" if region is not None else ""


@each_calling
@as_tokens_or_text
def test_required_calls_are_taken_in_the_familys_own_shape_and_nothing_else_is(
    name: str, as_tokens: bool
) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    lark = subject.lark(REQUIRED)
    assert subject.accepts(lark, subject.writes(ROME))
    assert subject.accepts(lark, subject.writes(STOP))
    for refused in (
        ("get_weather", {"city": "Paris", "days": 3}),
        ("get_weather", {"city": "Rome", "days": 10}),
        ("get_weather", {"days": 3}),
        ("get_time", {}),
    ):
        assert not subject.accepts(lark, subject.writes(refused)), refused
    assert not subject.accepts(lark, "No.")
    assert not subject.accepts(lark, "")


@pytest.mark.parametrize("name", SEVERAL)
@as_tokens_or_text
def test_one_call_or_several_as_the_choice_says(name: str, as_tokens: bool) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    both = subject.writes(ROME, STOP)
    assert subject.accepts(subject.lark(REQUIRED), both)
    one = subject.lark(ToolChoice(CallMode.REQUIRED, parallel=False))
    assert not subject.accepts(one, both)
    assert subject.accepts(one, subject.writes(STOP))


def test_a_list_of_calls_may_stand_behind_a_blank() -> None:
    subject = Subject("mistral")
    written = subject.writes(ROME)
    assert subject.accepts(subject.lark(REQUIRED), written.replace("[TOOL_CALLS]", "[TOOL_CALLS] "))


@pytest.mark.parametrize("name", sorted(set(SEVERAL) - {"llama-json", "llama-pythonic"}))
@as_tokens_or_text
def test_text_behind_the_only_free_call_has_no_other_call(name: str, as_tokens: bool) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    lark = subject.lark(ToolChoice(parallel=False))
    assert subject.accepts(lark, subject.writes(ROME) + "Done.")
    assert not subject.accepts(lark, subject.writes(ROME) + "And " + subject.writes(("get_time", {})))


@pytest.mark.parametrize("name", SEVERAL)
def test_a_text_may_be_any_and_a_typed_value_is_not(name: str) -> None:
    properties = {"say": {"type": "string"}, "at": {"type": "object"}, "to": {"type": ["string", "null"]}}
    tool = Tool(name="say", parameters={"type": "object", "properties": properties, "required": ["say"]})
    subject = Subject(name)
    lark = subject.lark(REQUIRED, (tool,))
    assert subject.accepts(lark, subject.writes(("say", {"say": 'a <b> "c" \n\n{', "at": {}, "to": "you"})))
    assert not subject.accepts(lark, subject.writes(("say", {"say": "a", "at": 3})))


@each_calling
def test_a_named_tool_is_the_only_one(name: str) -> None:
    subject = Subject(name)
    lark = subject.lark(ToolChoice(CallMode.REQUIRED, names=("stop-all",)))
    assert subject.accepts(lark, subject.writes(STOP))
    assert not subject.accepts(lark, subject.writes(ROME))


@each_calling
@as_tokens_or_text
def test_free_calls_of_strict_tools_fit_once_their_mark_is_there(name: str, as_tokens: bool) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    lark = subject.lark(ToolChoice())
    says = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    assert subject.accepts(lark, f"{says}Just text, <b> and { {} }.")
    assert subject.accepts(lark, subject.writes(ROME))
    assert not subject.accepts(lark, subject.writes(("get_weather", {"city": "Paris"})))
    calls = DIALECTS[name].calls
    if calls is not None and not calls.bare:
        assert subject.accepts(lark, "I look." + subject.writes(ROME))
        assert not subject.accepts(lark, "I look." + subject.writes(("get_time", {})))


@each_calling
@as_tokens_or_text
@pytest.mark.parametrize("mode", [CallMode.REQUIRED, CallMode.AUTO])
def test_whatever_a_grammar_allows_is_read_as_calls_that_fit(
    name: str, as_tokens: bool, mode: CallMode
) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    lark = subject.lark(ToolChoice(mode))
    found = [subject.vocabulary.answer(lark, seed) for seed in range(12)]
    answers = [subject.read(each) for each in found if each is not None]
    assert len(answers) >= 6, "too few of them end"
    for said in answers:
        calls = [each for each in said if each.kind == "call"]
        assert calls or mode is CallMode.AUTO
        for call in calls:
            assert _fit(call), call
        if mode is CallMode.REQUIRED:
            assert {each.kind for each in said} <= {"call", "reasoning"}


@pytest.mark.parametrize("name", [name for name in CALLING if DIALECTS[name].reasoning is not None])
@as_tokens_or_text
def test_reasoning_comes_first_and_ends_where_the_prompt_has_opened_it(name: str, as_tokens: bool) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    region = DIALECTS[name].reasoning
    assert region is not None
    subject.prompt_tail = ""
    thought = f"{region.open}\nHm.\n{region.close}\n\n{subject.writes(ROME)}"
    lark = subject.lark(REQUIRED)
    assert subject.accepts(lark, thought)
    assert subject.accepts(lark, subject.writes(ROME))
    subject.prompt_tail = f"{region.open}\n"
    lark = subject.lark(REQUIRED)
    if as_tokens:
        assert subject.after == [region.close]
        assert subject.accepts(lark, thought.partition(region.close)[2])
    else:
        assert subject.after == []
        assert subject.accepts(lark, thought.removeprefix(region.open))
        assert not subject.accepts(lark, subject.writes(ROME))


@pytest.mark.parametrize("name", ["qwen3", "gpt-oss", "hermes"])
def test_a_json_answer_stands_behind_the_reasoning(name: str) -> None:
    subject = Subject(name)
    schema = SCHEMAS["get_weather"]
    constraint = subject.dialect.grammar((), ToolChoice(), schema=schema, prompt_tail=subject.prompt_tail)
    assert constraint is not None
    lark = constraint.text
    head = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    assert subject.accepts(lark, head + json.dumps(ROME[1]))
    assert not subject.accepts(lark, head + "{}")
    if name == "gpt-oss":
        assert subject.accepts(
            lark, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{head}" + json.dumps(ROME[1])
        )


@each_calling
@as_tokens_or_text
def test_an_answer_of_a_format_is_calls_or_json(name: str, as_tokens: bool) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    schema = {"type": "array", "items": {"type": "integer"}}
    free, required = (
        subject.dialect.grammar(STRICT, choice, schema=schema, prompt_tail=subject.prompt_tail)
        for choice in (ToolChoice(), REQUIRED)
    )
    assert free is not None
    assert required is not None
    head = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    for constraint in (free, required):
        assert subject.accepts(constraint.text, subject.writes(ROME))
        assert not subject.accepts(constraint.text, subject.writes(("get_time", {})))
        assert not subject.accepts(constraint.text, f"{head}It rains.")
    assert subject.accepts(free.text, f"{head}[1, 2]")
    assert not subject.accepts(required.text, f"{head}[1, 2]")


def test_nothing_is_constrained_where_nothing_is_to_be_kept() -> None:
    dialect = Subject("hermes").dialect
    assert dialect.grammar((), REQUIRED) is None
    assert dialect.grammar(STRICT, ToolChoice(CallMode.NONE)) is None
    assert dialect.grammar(TOOLS, ToolChoice()) is None
    assert dialect.grammar(TOOLS, REQUIRED) is not None
    assert TokenizedDialect(DIALECTS["deepseek-r1"], {}).grammar(STRICT, REQUIRED) is None


def test_a_tool_that_is_not_strict_takes_any_object_beside_one_that_is() -> None:
    subject = Subject("hermes")
    lark = subject.lark(ToolChoice(), (STRICT[0], Tool(name="stop-all", parameters={"required": ["a"]})))
    assert subject.accepts(lark, subject.writes(("stop-all", {"b": 1})))
    assert not subject.accepts(lark, subject.writes(("get_weather", {"b": 1})))


@each_calling
def test_there_may_be_128_tools_of_many_words(name: str) -> None:
    """What is for readers alone, and what comes twice, stands in no grammar."""
    properties = {
        **{
            f"p{number}": {"type": ["integer", "boolean", "object"][number % 3], "description": "x" * 90}
            for number in range(9)
        },
        "description": {"type": "string", "title": "kept"},
        "kind": {"const": {"title": "kept"}},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["description"],
        "additionalProperties": False,
    }
    tools = tuple(Tool(name=f"tool_{number}", parameters=schema) for number in range(128))
    subject = Subject(name)
    lark = subject.lark(REQUIRED, tools)
    assert "xxx" not in lark
    assert lark.count("%json") <= len(properties)
    assert subject.accepts(
        lark, subject.writes(("tool_127", {"description": "a", "kind": {"title": "kept"}}))
    )
    assert not subject.accepts(lark, subject.writes(("tool_127", {"kind": {"title": "kept"}})))
    assert not subject.accepts(lark, subject.writes(("tool_128", {"description": "a"})))


LINES = """start: line (NEWLINE line)*
line: WORD (SP ("="|/!=/) SP VALUE)?  // one condition
VALUE: "\\"" /[^\\n"<]|\\\\./* "\\"" | NUMBER | /(?i:null\\.)/
SP: " "
WORD: "a".."z"+
%import common.NUMBER
%import common.NEWLINE
"""
PATCH = """start: "*** Begin" LF hunk+ "*** End" LF?
hunk: "@@" (" " /(.+)/)? LF (/[+ -]/ /(.*)/ LF)+
LF: /\\r?\\n/
"""
LARK = (
    Tool.custom("filter", "", Constraint("lark", LINES)),
    Tool.custom("patch", "", Constraint("lark", PATCH)),
)
CUSTOM = (Tool.custom("path", "", Constraint("regex", r'([a-z]+/)*"?[^"\n]*"?\n')),)


@each_calling
@as_tokens_or_text
def test_a_custom_tools_text_keeps_its_grammar_where_the_dialect_can_write_it(
    name: str, as_tokens: bool
) -> None:
    subject = Subject(name, as_tokens=as_tokens)
    form = None if subject.dialect.dialect.calls is None else subject.dialect.dialect.calls.form
    tools: tuple[Tool, ...] = CUSTOM
    if isinstance(form, NamedCall) and isinstance(form.arguments, XmlArguments):
        tools = (*LARK, *CUSTOM)
    else:
        with pytest.raises(BadValueError, match="a lark grammar works only with models"):
            subject.lark(REQUIRED, LARK)
    for lark in (subject.lark(REQUIRED, tools), subject.lark(ToolChoice(), tools)):
        for tool, text, fits in (
            ("filter", 'city = "a \\" b\\\\"\ndays != 3.5\nx = NULL.', True),
            ("filter", "city =", False),
            ("filter", 'city = "a\nb"', False),
            ("filter", "", False),
            ("patch", '*** Begin\n@@ f\n+say("a\\n", b/c)<b>\n \n-\tx\r\n*** End', True),
            ("patch", "*** Begin\n@@ f\n+say\n*** Ende", False),
            ("path", 'usr/bin/"c:\\d\t<b>"\n', True),
            ("path", 'usr/bin/"c"', False),
        ):
            if tool in {each.name for each in tools}:
                assert subject.accepts(lark, subject.writes((tool, {"input": text}))) is fits, (tool, text)


@pytest.mark.parametrize("named", ["<|im_end|>", "<[5]>"])
def test_a_custom_tools_grammar_names_no_tokens(named: str) -> None:
    subject = Subject("qwen3-coder")
    fine = Tool.custom("f", "", Constraint("lark", f'start: "{named}" /{named}/ // {named}'))
    assert subject.lark(REQUIRED, (fine,))
    with pytest.raises(BadValueError, match="names the token"):
        subject.lark(REQUIRED, (Tool.custom("f", "", Constraint("lark", f'start: "a" {named}')),))
