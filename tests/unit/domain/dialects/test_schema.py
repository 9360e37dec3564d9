"""What a tool's schema says of its arguments, and where its objects are closed."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.domain.text.dialects.schema import closed, outline, types_of_argument, without_parameters

S: dict[str, Any] = {"type": "string"}
OPEN = {"type": "object", "properties": {"a": S}}
SHUT = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (OPEN, SHUT),
        ({**OPEN, "additionalProperties": True}, {**OPEN, "additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": SHUT}),
        ({"anyOf": [OPEN, S]}, {"anyOf": [SHUT, S]}),
        ({"properties": {"properties": OPEN}}, {"properties": {"properties": SHUT}, "additionalProperties": False}),
        ({"$defs": {"x": OPEN}, "$ref": "#/$defs/x"}, {"$defs": {"x": SHUT}, "$ref": "#/$defs/x"}),
        ({"allOf": [OPEN]}, {"allOf": [SHUT]}),
        ({"allOf": [OPEN, {"properties": {"b": S}}]}, {"allOf": [OPEN, {"properties": {"b": S}}]}),
        ({"$defs": {"x": OPEN}, "allOf": [{"$ref": "#/$defs/x"}, OPEN]}, {"$defs": {"x": OPEN}, "allOf": [{"$ref": "#/$defs/x"}, OPEN]}),
        ({**OPEN, "anyOf": [{"properties": {"b": S}}]}, {**OPEN, "anyOf": [{"properties": {"b": S}}]}),
        ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
    ],
)  # fmt: skip
def test_objects_are_closed_where_they_name_all_their_members(
    given: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert closed(given) == meant


def test_types_of_other_languages_are_json_types() -> None:
    names = {
        "float": "number",
        "dict": "object",
        "list": "array",
        "bool": "boolean",
        "int": "integer",
        "str": "string",
    }
    schema = {"properties": {name: {"type": name} for name in names}}
    assert {name: types_of_argument(schema, name) for name in names} == {
        name: {kind} for name, kind in names.items()
    }
    assert outline(schema)["properties"]["dict"] == {"type": ["object"]}
    assert outline({"properties": {"a": {"type": "strange"}}}) == {"type": "object", "properties": {"a": {}}}


def test_a_tool_has_no_parameters_where_its_schema_names_none() -> None:
    assert without_parameters({"type": "object"})
    assert without_parameters({"type": "object", "properties": {}, "additionalProperties": False})
    assert not without_parameters({"type": "object", "additionalProperties": True})
    assert not without_parameters({"type": "object", "$ref": "#/$defs/x", "$defs": {"x": OPEN}})
    assert not without_parameters(OPEN)
