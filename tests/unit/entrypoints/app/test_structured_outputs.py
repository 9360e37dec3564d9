"""Each form that clients send is one constraint, and a wrong one is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.entrypoints.compose.bootstrap import check_constraint
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
WRITTEN = '{"type":"object","properties":{"b":{},"a":{}}}'
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {}, "end": ""}],
    "triggers": ["<f"],
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"structured_outputs": None, "response_format": None}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": None, "json_object": False}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", WRITTEN)),
        ({"structured_outputs": {"json": WRITTEN}}, Constraint("json_schema", WRITTEN)),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            Constraint("json_schema", WRITTEN, whitespace=""),
        ),
        ({"structured_outputs": {"json_object": True}}, Constraint("json_object", "")),
        ({"structured_outputs": {"regex": "a+"}}, Constraint("regex", "a+")),
        ({"structured_outputs": {"choice": ["é", "b"]}}, Constraint("choice", '["é","b"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Constraint("lark", 'start: "a"')),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Constraint("gbnf", 'root ::= "a"')),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", "")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            Constraint("json_schema", WRITTEN),
        ),
        (
            {"response_format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            Constraint("json_schema", WRITTEN),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            Constraint("json_object", ""),
        ),
    ],
)
def test_every_form(fields: dict[str, Any], expected: Constraint | None) -> None:
    found = constraint_of(**fields)
    assert found == expected
    if found is not None:
        check_constraint(found)


def test_a_schema_that_nothing_fits_is_no_missing_one() -> None:
    found = constraint_of(structured_outputs={"json": False})
    assert found == Constraint("json_schema", "false")
    with pytest.raises(BadValueError, match="no value fits false"):
        check_constraint(found)


@pytest.mark.parametrize("field", ["structured_outputs", "response_format"])
def test_structural_tags(field: str) -> None:
    value = TAG if field == "response_format" else {"structural_tag": TAG}
    found = constraint_of(**{field: value})
    assert found is not None
    assert found.kind == "structural_tag"
    check_constraint(found)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"structured_outputs": []}, "structured_outputs: must be an object"),
        ({"structured_outputs": {"xml": 1}}, r"structured_outputs\.xml"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "may hold one of json, regex"),
        ({"structured_outputs": {"regex": 3}}, r"structured_outputs\.regex"),
        ({"structured_outputs": {"json": {"a": float("nan")}}}, r"structured_outputs\.json: must be JSON"),
        ({"response_format": {"type": "xml"}}, r"response_format\.type"),
        ({"response_format": "text"}, "response_format: must be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": 3}}, r"response_format\.json_schema"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "cannot be combined with",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadValueError, match=named):
        constraint_of(**fields)
