"""What a tool's JSON schema says of the types of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_REFERENCES: Final = 8
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
"""What tools made from other languages' functions call JSON's types."""


def types_of_argument(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """The JSON types that an argument may have; a string where the schema does not say."""
    properties = schema.get("properties")
    found = (
        _types(properties.get(name), schema, _MOST_REFERENCES) if isinstance(properties, Mapping) else None
    )
    return frozenset(found or _STRING)


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
