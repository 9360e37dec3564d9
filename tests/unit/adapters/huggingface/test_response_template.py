"""A checkpoint's own response template becomes a dialect, and reads answers as transformers does by the same template."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from nanoserve.domain.text.dialects.families import DIALECTS
from nanoserve.domain.text.dialects.response_template import read_response_template
from nanoserve.domain.text.dialects.tokenized import choose_dialect
from nanoserve.ports.driven import DialectFacts
from nanoserve.ports.errors import ModelLoadError
from tests.unit.domain.dialects.cases import CASES, TOOLS, Case, Said, name_of, parsed

TEMPLATES: dict[str, dict[str, Any]] = json.loads(
    pathlib.Path(__file__).with_name("response_templates.json").read_text()
)
ELSEWISE = (
    "never ends",
    "no JSON",
    "oops",
    '"b',
    'name":"stop-all',
    "many",
    "\n\nRome\n\n",
    "Done.",
    '"{\\"',
    "}]\n",
)
"""What transformers refuses, or reads otherwise: text cut short or broken, calls without arguments, text on both sides."""
COMPARED = [
    case
    for case in CASES
    if case.dialect in TEMPLATES
    and not any(each in case.written for each in ELSEWISE)
    and not case.written.startswith(("<function", "[TOOL_CALLS] {"))
]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_template_of_a_known_family_is_that_family(name: str) -> None:
    assert read_response_template(TEMPLATES[name]) is DIALECTS[name]


def test_a_template_of_an_unknown_family_is_a_dialect_of_its_own() -> None:
    fields = {
        "thinking": {"open": "<hm>", "close": "</hm>"},
        "tool_calls": {
            "open_pattern": r"<call:(?P<name>\w+)>",
            "close": "</call>",
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
    }
    chosen = choose_dialect(DialectFacts(response_template={"fields": fields}, model_type="gpt_oss"))
    assert chosen is not None
    assert chosen.dialect.name == "response_template"
    parser = chosen.parser(tools=TOOLS)
    events = [*parser.push('<hm>a</hm>b<call:f>{"x": 1}</call>', [1]), *parser.close()]
    assert parsed(events) == (Said("reasoning", "a"), Said("text", "b"), Said("call", "f", {"x": 1}))


@pytest.mark.parametrize("case", COMPARED, ids=name_of)
def test_answers_are_read_as_transformers_reads_them(case: Case) -> None:
    anchor = TEMPLATES[case.dialect]["start_anchor"]
    tail = case.prompt_tail.rpartition("assistant\n")[2]
    tools: list[Any] = [tool.as_message() for tool in TOOLS]
    theirs = parse_response(case.written, TEMPLATES[case.dialect], prefix=anchor + tail, tools=tools)
    assert _as_message(case.said) == {
        "reasoning": theirs.get("thinking") or theirs.get("reasoning_content") or "",
        "content": theirs.get("content", ""),
        "calls": [
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            for call in theirs.get("tool_calls", [])
        ],
    }


def test_there_is_enough_to_compare() -> None:
    assert len(COMPARED) >= 10
    assert {case.dialect for case in COMPARED} == set(TEMPLATES)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("thinking.open", {"thinking": {"open_pattern": "<think>|<thought>", "close": "</think>"}}),
        ("thinking.open", {"thinking": {"close": "</think>"}}),
        ("tool_calls", {"tool_calls": {"open": "<call>", "content": "kv-lines"}}),
        (
            "content_args",
            {"tool_calls": {"open_pattern": "<(?P<name>a)>", "transform": {}, "content": "xml-inline"}},
        ),
        ("fields.image", {"image": {"open": "<image>"}}),
        ("fields", None),
    ],
)
def test_what_no_dialect_can_say_is_refused_by_its_name_and_passed_over_unless_asked_for(
    name: str, fields: Any
) -> None:
    facts = DialectFacts(response_template={"fields": fields}, model_type="gpt_oss")
    with pytest.raises(ModelLoadError, match=name):
        choose_dialect(facts, "response_template")
    chosen = choose_dialect(facts)
    assert chosen is not None
    assert chosen.dialect.name == "gpt-oss"


def _as_message(said: tuple[Said, ...]) -> dict[str, Any]:
    return {
        "reasoning": "".join(each.text for each in said if each.kind == "reasoning"),
        "content": "".join(each.text for each in said if each.kind == "text").strip(),
        "calls": [{"name": each.text, "arguments": each.arguments} for each in said if each.kind == "call"],
    }
