"""Reads the types of a tool's arguments from its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from nanoserve.ports.tool_calls import Tool

NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_MOST_REFERENCES: Final = 8
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_CHOICES: Final = frozenset({"anyOf", "oneOf"})
_INSIDE: Final = frozenset({"items", "prefixItems", "allOf", "additionalProperties", *_CHOICES})
_JOINING: Final = frozenset({"$ref", "allOf", "if", *_CHOICES})
_OPEN: Final = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_OF_NO_PARAMETERS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs"}
)
_STRING: Final = frozenset({"string"})
_PYTHON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_NAMES: Final = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "set", "arr"), "array"),
    **dict.fromkeys(("dict", "map", "obj"), "object"),
    "none": "null",
}
"""Other languages' names for JSON's types, in tools made from their functions."""


def types_of_argument(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """The JSON types that an argument may have; a string where the schema does not say."""
    return frozenset(_types(properties_of(schema).get(name), schema, _MOST_REFERENCES) or _STRING)


def properties_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of an object's members."""
    found = schema.get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with closed objects: they have only named members, unless it says otherwise.

    OpenAI asks for `additionalProperties: false` wherever `strict` is. Objects that are joined with others stay open, as each names but
    a part of the members, and so do those that name none.
    """
    joined = set[str]()
    _find_joined(schema, joined)
    done: dict[str, Any] = _closed(schema, joined, "#", is_joined=False)
    return done


def _closed(schema: Any, joined: AbstractSet[str], place: str, *, is_joined: bool) -> Any:
    if isinstance(schema, list):
        return [
            _closed(each, joined, f"{place}/{index}", is_joined=is_joined)
            for index, each in enumerate(schema)
        ]
    if not isinstance(schema, Mapping):
        return schema
    is_joined = is_joined or place in joined
    is_part = is_joined or not _JOINING.isdisjoint(schema)
    done: dict[str, Any] = {}
    for word, value in schema.items():
        inner = f"{place}/{word}"
        if word in _NAMED and isinstance(value, Mapping):
            done[word] = {
                name: _closed(each, joined, f"{inner}/{name}", is_joined=False)
                for name, each in value.items()
            }
        elif word in _INSIDE:
            joins = word == "allOf" and (len(value) > 1 or "properties" in schema)
            beside = word in _CHOICES and (is_joined or "properties" in schema)
            done[word] = _closed(value, joined, inner, is_joined=joins or beside)
        else:
            done[word] = value
    if "properties" in schema and not is_part and _OPEN.isdisjoint(schema):
        done["additionalProperties"] = False
    return done


def _find_joined(schema: Any, joined: set[str]) -> None:
    """The places that are referred to beside other members."""
    if isinstance(schema, list):
        for each in schema:
            _find_joined(each, joined)
    elif isinstance(schema, Mapping):
        branches = schema.get("allOf") or ()
        parts = [schema, *branches] if "properties" in schema or len(branches) > 1 else []
        joined.update(str(each["$ref"]) for each in parts if isinstance(each, Mapping) and "$ref" in each)
        for value in schema.values():
            _find_joined(value, joined)


def without_parameters(schema: Mapping[str, Any]) -> bool:
    """True if a tool of this schema takes no arguments."""
    names_some = any(schema.get(each) for each in ("properties", "required", "additionalProperties"))
    return not names_some and schema.keys() <= _OF_NO_PARAMETERS


def held(tool: Tool) -> Mapping[str, Any]:
    """The schema for the arguments of a call: the whole one if `strict`, else as much as a grammar can express."""
    if not tool.strict:
        return tool.parameters if not without_parameters(tool.parameters) else NO_ARGUMENTS
    return closed(tool.parameters)


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The names and the types of the arguments alone."""
    found = {}
    for name in properties_of(schema):
        types = sorted(types_of_argument(schema, name) & _TYPES)
        found[name] = {"type": types} if types else {}
    return {"type": "object", "properties": found}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    declared = schema.get("type")
    declared = [declared] if isinstance(declared, str) else declared
    found = {
        _NAMES.get(each.lower(), each)
        for each in (declared if isinstance(declared, list) else ())
        if isinstance(each, str)
    }
    if found:
        return found | ({"null"} if schema.get("nullable") is True else set())
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth - 1)
    values = schema.get("enum") if "enum" in schema else [schema["const"]] if "const" in schema else []
    if isinstance(values, list):
        found |= {_PYTHON_TYPES.get(type(value), "object") for value in values}
    for union in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else ():
            found |= _types(choice, root, depth - 1)
    return found


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
