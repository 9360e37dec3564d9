"""Wrong values at every place of the fields that constrain an answer: a 4xx in the server's words, or an answer."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

CHAT: Final = "/v1/chat/completions"
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^x$", "format": "date", "minLength": 1},
        "b": {"enum": [1]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "anyOf": [{"$ref": "#/$defs/c"}],
    "$defs": {"c": {"items": [{"const": 1}], "multipleOf": 2}},
}
FORM: Final = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}],
}
TAG: Final = {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]}
CUSTOM: Final = {
    "name": "c",
    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}},
}
FIELDS: Final[list[dict[str, Any]]] = [
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        }
    },
    {"response_format": {"type": "structural_tag", "format": FORM}},
    {"response_format": {"type": "structural_tag", **TAG}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
    *(
        {"structured_outputs": each}
        for each in ({"regex": "a+"}, {"choice": ["a"]}, {"grammar": 'start: "a"'})
    ),
    {"guided_json": SCHEMA},
    {"guided_regex": "a+", "guided_choice": ["a"], "guided_grammar": 'start: "a"'},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}]},
    {"tools": [{"type": "custom", "custom": CUSTOM}], "tool_choice": "required"},
]
WRONG: Final[Sequence[Any]] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "\x00(",
    [],
    [None],
    {},
    {"": []},
    [[1]],
    {"type": 3},
)
PYTHON: Final = re.compile(
    r"Error\\b|object is not|object has no|argument|NoneType|Traceback|subscript|unhashable|positional|expected str|list index|"
    r"invalid literal|<class|codec|'(?:int|str|dict|list|float|bool)'"
)
"""Words of Python's own exceptions."""


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    with app_world() as made:
        yield made


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything within a JSON value."""
    if at:
        yield at
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in members:
        yield from places(each, (*at, key))


def with_value(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_no_wrong_type_is_a_failure_or_speaks_python(world: AppWorld, number: int) -> None:
    fields = FIELDS[number]
    refused, flaws = 0, list[str]()
    with world.client() as http:
        for turn, place in enumerate(places(fields)):
            for value in WRONG[turn % 4 :: 4]:
                body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2} | with_value(
                    fields, place, value
                )
                answer = http.post(CHAT, json=body)
                refused += answer.status_code == 400
                if answer.status_code not in {200, 400} or (
                    answer.status_code == 400 and PYTHON.search(answer.json()["error"]["message"])
                ):
                    flaws.append(f"{place} = {value!r}: {answer.status_code} {answer.text[:300]}")
    assert flaws == []
    assert refused > 3
