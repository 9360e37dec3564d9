"""Keywords of JSON schemas that llguidance lacks, expressed by others, or left out if they constrain nothing.

By the specification (JSON Schema 2020-12 and the drafts before it), so that neither more nor less is valid. What stays is refused, or lost
where the schema is lenient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Those that the library keeps; any other is an annotation."""
REMARKS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"contentEncoding", "contentMediaType", "contentSchema", "$comment", "$schema", "$id", "id"}
    | {"$anchor", "$vocabulary"}
)
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"})
_LEADING: Final = re.compile(r"\^\(\?([=!])((?:[^()\\\[\]]|\\.|\[(?:[^\]\\]|\\.)*\])*)\)")
"""A look-ahead without groups in it, at the beginning."""


def say_otherwise(schema: dict[str, Any]) -> None:
    """Change a schema's own keywords; those of the schemas in it stay."""
    for change in (_core, _values, _strings, _members, _items, _conditions, _negation):
        change(schema)


def is_any(schema: Any) -> bool:
    """True if anything fits."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= REMARKS)


def is_none(schema: Any) -> bool:
    """True if nothing fits."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and is_any(schema["not"]))


def also(schema: dict[str, Any], *others: Any) -> None:
    """These must fit, too."""
    if others and isinstance(joined := schema.get("allOf", []), list):
        schema["allOf"] = [*joined, *others]


def _core(schema: dict[str, Any]) -> None:
    for old, new in (("$dynamicRef", "$ref"), ("$recursiveRef", "$ref"), ("$dynamicAnchor", "$anchor")):
        if isinstance(schema.get(old), str):
            schema.setdefault(new, schema.pop(old))
    for word in ("$recursiveAnchor", "$vocabulary"):
        schema.pop(word, None)
    if "json-schema.org" not in str(schema.get("$schema", "json-schema.org")):
        del schema["$schema"]
    if "any" in (schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]):
        del schema["type"]


def _values(schema: dict[str, Any]) -> None:
    """Draft 4 says by a boolean that a limit itself is excluded."""
    for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(excluded := schema.get(word), bool):
            del schema[word]
            if excluded and limit in schema:
                schema[word] = schema.pop(limit)


def _strings(schema: dict[str, Any]) -> None:
    """Look-aheads at the beginning of a pattern are patterns beside it; what zod forbids there, the format `email` forbids too."""
    form, pattern = schema.get("format"), schema.get("pattern")
    if isinstance(form, str) and form not in _FORMATS:
        del schema["format"]
    if not isinstance(pattern, str):
        return
    beside = []
    while found := _LEADING.match(pattern):
        if found[1] == "!" and form != "email":
            return
        if found[1] == "=":
            beside.append({"pattern": f"^(?:{found[2]})"})
        pattern = "^" + pattern[found.end() :]
    schema["pattern"] = pattern
    also(schema, *beside)


def _members(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    required = schema.get("required", [])
    names = schema.get("propertyNames")
    if is_any(names) or (
        isinstance(names, dict) and names.keys() - REMARKS == {"type"} and names["type"] == "string"
    ):
        del schema["propertyNames"]
    elif isinstance(names, dict) and not {"properties", "patternProperties"} & schema.keys():
        _name_members(schema, names)
    if isinstance(least := schema.get("minProperties"), int) and least <= len(required):
        del schema["minProperties"]
    rest = schema.get("unevaluatedProperties")
    if is_any(rest) or (rest is not None and "additionalProperties" in schema):
        del schema["unevaluatedProperties"]
    elif rest is not None and not _IN_PLACE & schema.keys():
        schema["additionalProperties"] = schema.pop("unevaluatedProperties")


def _name_members(schema: dict[str, Any], names: Mapping[str, Any]) -> None:
    """A map whose names are of a list, or of a pattern or a length."""
    words = names.keys() - REMARKS - {"type"}
    each = schema.get("additionalProperties", True)
    if words == {"enum"}:
        schema["properties"] = {name: each for name in names["enum"] if isinstance(name, str)}
    elif words == {"const"}:
        schema["properties"] = {str(names["const"]): each}
    elif words == {"pattern"}:
        schema["patternProperties"] = {names["pattern"]: each}
    elif words and words <= {"minLength", "maxLength"}:
        bounds = f"{names.get('minLength', 0)},{names.get('maxLength', '')}"
        schema["patternProperties"] = {f"^(?s:.){{{bounds}}}$": each}
    else:
        return
    del schema["propertyNames"]
    schema["additionalProperties"] = False


def _items(schema: dict[str, Any]) -> None:
    unique, most = schema.get("uniqueItems"), schema.get("maxItems")
    if unique is False or (unique is True and isinstance(most, int) and most <= 1):
        del schema["uniqueItems"]
    if not isinstance(schema.get("items"), list):
        schema.pop("additionalItems", None)
    least = schema.get("minContains", 1)
    is_over = "contains" not in schema or (least == 0 and "maxContains" not in schema)
    if not is_over and is_any(schema["contains"]):
        schema["minItems"] = max(schema.get("minItems", 0), least)
        bounds = [schema[word] for word in ("maxItems", "maxContains") if word in schema]
        schema |= {"maxItems": min(bounds)} if bounds else {}
        is_over = True
    for word in ("contains", "minContains", "maxContains") if is_over else ():
        schema.pop(word, None)
    rest = schema.get("unevaluatedItems")
    if is_any(rest) or (rest is not None and isinstance(schema.get("items"), dict | bool)):
        del schema["unevaluatedItems"]
    elif rest is not None and not {*_IN_PLACE, "contains", "items"} & schema.keys():
        schema["items"] = schema.pop("unevaluatedItems")


def _conditions(schema: dict[str, Any]) -> None:
    then, otherwise = schema.get("then", True), schema.get("else", True)
    condition = schema.get("if")
    if condition is None or (is_any(then) and is_any(otherwise)):
        chosen = [True]
    elif is_any(condition) or is_none(condition):
        chosen = [then if is_any(condition) else otherwise]
    else:
        chosen = []
    if chosen:
        for word in ("if", "then", "else"):
            schema.pop(word, None)
        also(schema, *(each for each in chosen if not is_any(each)))
    for word in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(given := schema.get(word), dict):
            del schema[word]
            _depend(schema, given)


def _depend(schema: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Each says what must be so where a member is there: it is not there, or that is so."""
    for name, then in given.items():
        needed = {"required": then} if isinstance(then, list) else then
        if is_any(needed) or needed == {"required": []}:
            continue
        absent = {"properties": {name: False}}
        also(schema, needed if name in schema.get("required", []) else {"anyOf": [absent, needed]})


def _negation(schema: dict[str, Any]) -> None:
    if "not" not in schema:
        return
    negated = schema["not"]
    words = negated.keys() - REMARKS if isinstance(negated, dict) else set[str]()
    own = schema.get("type", TYPES)
    if is_none(negated):
        del schema["not"]
    elif words == {"type"}:
        types = negated["type"] if isinstance(negated["type"], list) else [negated["type"]]
        left = [each for each in ([own] if isinstance(own, str) else own) if each not in types]
        if "integer" not in types or "number" in types:
            del schema["not"]
            schema["type"] = [each for each in left if each != "integer" or "number" not in types]
    elif words in ({"enum"}, {"const"}) and isinstance(schema.get("enum"), list):
        excluded = negated.get("enum", [negated.get("const")])
        schema["enum"] = [each for each in schema["enum"] if each not in excluded]
        del schema["not"]
    elif words == {"required"} and len(negated["required"]) == 1 and own == "object":
        del schema["not"]
        schema["properties"] = {**schema.get("properties", {}), negated["required"][0]: False}
