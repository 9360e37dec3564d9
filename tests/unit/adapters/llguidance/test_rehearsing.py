"""Plain schemas are not rehearsed: nothing that a rehearsal finds can be in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.adapters.llguidance import reading
from nanoserve.adapters.llguidance.rehearsing import is_plain, rehearse
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint

ANY: list[dict[str, Any]] = [
    {},
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": "number"},
    {"enum": ["a", "b"]},
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TYPES = st.sampled_from(["null", "boolean", "number", "integer", "string", "array", "object"])


def members(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(TEXTS, inner, max_size=6)
    return named.flatmap(
        lambda properties: st.fixed_dictionaries(
            {"properties": st.just(properties)},
            optional={
                "type": st.just("object"),
                "required": st.lists(st.sampled_from(sorted(properties)), unique=True)
                if properties
                else st.just([]),
                "additionalProperties": st.booleans() | inner,
            },
        )
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional={"type": TYPES | st.lists(TYPES, min_size=1), "description": TEXTS})
    | st.fixed_dictionaries(
        {"enum": st.lists(TEXTS, min_size=1)}, optional={"type": st.just("string"), "default": TEXTS}
    ),
    lambda inner: (
        members(inner) | st.fixed_dictionaries({"items": inner}, optional={"type": st.just("array")})
    ),
    max_leaves=20,
)


def wide(count: int, *schemas: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"p{each}": schemas[each % len(schemas)] for each in range(count)},
    }


def nested(depth: int) -> dict[str, Any]:
    return {
        "properties": {f"p{each}": {} for each in range(98)} | {"more": nested(depth - 1) if depth else {}}
    }


def rehearsed(schema: object) -> str:
    written = json.dumps(schema)
    return rehearse(reading.grammar_text(Constraint("json_schema", written), lambda _: False), written)


@given(SCHEMAS)
def test_no_plain_schema_would_be_refused(schema: dict[str, Any]) -> None:
    assert is_plain(json.dumps(schema))
    assert rehearsed(schema) == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [f"{each * 104729 % 999983:018d}" for each in range(10_000)]},
        {"enum": [f"{each:04d}" + "xyz" * 2729 for each in range(30)]},
        {"enum": ["", "\x00", "\x7f", '\n"\\', "\u2028", "\U0001f600"]},
        wide(2000, {"type": "string"}),
        wide(100, *ANY),
        wide(60, wide(100, *ANY)),
        {**wide(60, wide(100, {})), "required": [f"p{each}" for each in range(60)]},
        nested(28),
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_nor_would_the_largest(schema: dict[str, Any]) -> None:
    assert is_plain(json.dumps(schema))
    assert rehearsed(schema) == ""


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "text"},
        {"type": []},
        {"type": "integer", "enum": ["a"]},
        {"enum": []},
        {"enum": [1]},
        {"required": ["a"]},
        {"required": [1], "properties": {}},
        {"properties": {"a": False}},
        {"properties": []},
        {"items": False},
        {"items": [{}]},
        {"additionalProperties": {"pattern": "a"}},
        {"$ref": "#"},
        {"properties": {"a": {"anyOf": [{}, {}]}}},
        {"items": {"pattern": "^.*a.{40}$"}},
        {"minItems": 10**6},
        wide(101, *ANY),
        {**wide(101, {}), "title": "allOf"},
    ],
    ids=json.dumps,
)
def test_any_other_is_rehearsed(schema: object) -> None:
    assert not is_plain(json.dumps(schema))


def test_what_is_plain_is_weighed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    monkeypatch.setattr(reading, "MAX_VERDICTS", 0)

    def refuse(_grammar: str, written: str) -> str:
        tried.append(written)
        return "no"

    monkeypatch.setattr(reading, "rehearse", refuse)
    reading.check(Constraint("json_schema", json.dumps(wide(3, {}))))
    with pytest.raises(BadValueError, match="may have 2000 members"):
        reading.check(Constraint("json_schema", json.dumps(wide(4000, {}))))
    assert tried == []
    with pytest.raises(BadValueError, match="no"):
        reading.check(Constraint("json_schema", '{"minLength": 3}'))
    assert tried == ['{"minLength": 3}']


def test_half_a_character_is_refused_by_name() -> None:
    with pytest.raises(BadValueError, match="half of a surrogate pair"):
        reading.check(Constraint("json_schema", '{"enum": ["\\ud800"]}'))
