"""JSON schemas without the keywords that llguidance lacks, where others say the same or nothing is said, and with where the rest stand.

What is left out here constrains nothing by the specification (JSON Schema 2020-12 and the drafts before it), so that neither more nor
less is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nanoserve.ports.errors import BadValueError

_ALL_TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Those that the library keeps; any other is an annotation."""
_REMARKS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"contentEncoding", "contentMediaType", "contentSchema", "$comment", "$schema", "$id", "id"}
    | {"$anchor", "$vocabulary"}
)
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS: Final = ("items", "additionalItems", "additionalProperties")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"})
_ADVICE: Final = {
    "not": "say what is allowed instead",
    "if": "write anyOf of the cases",
    "contains": "say by items what each item may be",
    "uniqueItems": "leave it out and check it in your code",
    "propertyNames": "name the members in properties, or use patternProperties",
    "dependentRequired": "write anyOf of the cases",
    "dependentSchemas": "write anyOf of the cases",
    "dependencies": "write anyOf of the cases",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
}
_LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]")
_LEADING: Final = re.compile(r"\^\(\?([=!])((?:[^()\\\[\]]|\\.|\[(?:[^\]\\]|\\.)*\])*)\)")
"""A look-ahead without groups in it, at the beginning."""


def simplified(kind: str, schema: Any) -> Any:
    """The schema in words that the library has. Raises `BadValueError` for what it cannot keep, with where that stands.

    A schema whose `x-guidance` says `lenient` loses such words instead.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    is_lenient = isinstance(options, dict) and options.get("lenient") is True
    return _Simplifying(kind, is_lenient=is_lenient).schema(schema, "#")


class _Simplifying:
    def __init__(self, kind: str, *, is_lenient: bool) -> None:
        self._kind, self._is_lenient = kind, is_lenient

    def schema(self, schema: Any, place: str) -> Any:
        """One schema and those within it."""
        if not isinstance(schema, dict):
            return schema
        schema = dict(schema)
        for change in (_core, _values, _strings, _members, _items, _conditions, _negation):
            change(schema)
        if _is_none(schema) and place == "#":
            raise BadValueError(self._kind, "#: no value fits false, or a `not` of what anything fits")
        if _is_none(schema):
            return False
        for word in _ADVICE.keys() & schema.keys():
            self._refuse(place, word)
            del schema[word]
        if isinstance(pattern := schema.get("pattern"), str) and _LOOK_AROUND.search(pattern):
            self._refuse(
                place, "pattern", "look-around is not known; write it without `(?=`, `(?!` and the like"
            )
            del schema["pattern"]
        for path, name, each in _inner(schema):
            each[name] = self.schema(each[name], f"{place}/{path}")
        return schema

    def _refuse(self, place: str, word: str, advice: str = "") -> None:
        if not self._is_lenient:
            raise BadValueError(self._kind, f"{place}/{word}: cannot be kept; {advice or _ADVICE[word]}")


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The schemas in a schema: where they stand, their key or index, and what holds them, which is copied first."""
    for word in _MAPS:
        if isinstance(schema.get(word), dict):
            schema[word] = dict(schema[word])
            for name in [*schema[word]]:
                yield f"{word}/{name.replace('~', '~0').replace('/', '~1')}", name, schema[word]
    for word in _LISTS:
        if isinstance(schema.get(word), list):
            schema[word] = list(schema[word])
            yield from ((f"{word}/{index}", index, schema[word]) for index in range(len(schema[word])))
    yield from ((word, word, schema) for word in _SCHEMAS if isinstance(schema.get(word), dict))


def _is_any(schema: Any) -> bool:
    """Whether anything fits."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _REMARKS)


def _is_none(schema: Any) -> bool:
    """Whether nothing fits."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and _is_any(schema["not"]))


def _also(schema: dict[str, Any], *others: Any) -> None:
    """These must fit, too."""
    if others:
        schema["allOf"] = [*schema.get("allOf", ()), *others]


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
    _also(schema, *beside)


def _members(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    required = schema.get("required", [])
    names = schema.get("propertyNames")
    if _is_any(names) or (
        isinstance(names, dict) and names.keys() - _REMARKS == {"type"} and names["type"] == "string"
    ):
        del schema["propertyNames"]
    elif isinstance(names, dict) and not {"properties", "patternProperties"} & schema.keys():
        _name_members(schema, names)
    if isinstance(least := schema.get("minProperties"), int) and least <= len(required):
        del schema["minProperties"]
    rest = schema.get("unevaluatedProperties")
    if _is_any(rest) or (rest is not None and "additionalProperties" in schema):
        del schema["unevaluatedProperties"]
    elif rest is not None and not _IN_PLACE & schema.keys():
        schema["additionalProperties"] = schema.pop("unevaluatedProperties")


def _name_members(schema: dict[str, Any], names: Mapping[str, Any]) -> None:
    """A map whose names are of a list, or of a pattern or a length."""
    words = names.keys() - _REMARKS - {"type"}
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
    if not is_over and _is_any(schema["contains"]):
        schema["minItems"] = max(schema.get("minItems", 0), least)
        bounds = [schema[word] for word in ("maxItems", "maxContains") if word in schema]
        schema |= {"maxItems": min(bounds)} if bounds else {}
        is_over = True
    for word in ("contains", "minContains", "maxContains") if is_over else ():
        schema.pop(word, None)
    rest = schema.get("unevaluatedItems")
    if _is_any(rest) or (rest is not None and isinstance(schema.get("items"), dict | bool)):
        del schema["unevaluatedItems"]
    elif rest is not None and not {*_IN_PLACE, "contains", "items"} & schema.keys():
        schema["items"] = schema.pop("unevaluatedItems")


def _conditions(schema: dict[str, Any]) -> None:
    then, otherwise = schema.get("then", True), schema.get("else", True)
    condition = schema.get("if")
    if condition is None or (_is_any(then) and _is_any(otherwise)):
        chosen = [True]
    elif _is_any(condition) or _is_none(condition):
        chosen = [then if _is_any(condition) else otherwise]
    else:
        chosen = []
    if chosen:
        for word in ("if", "then", "else"):
            schema.pop(word, None)
        _also(schema, *(each for each in chosen if not _is_any(each)))
    for word in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(given := schema.get(word), dict):
            del schema[word]
            _depend(schema, given)


def _depend(schema: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Each says what must be so where a member is there: it is not there, or that is so."""
    for name, then in given.items():
        needed = {"required": then} if isinstance(then, list) else then
        if _is_any(needed) or needed == {"required": []}:
            continue
        absent = {"properties": {name: False}}
        _also(schema, needed if name in schema.get("required", []) else {"anyOf": [absent, needed]})


def _negation(schema: dict[str, Any]) -> None:
    if "not" not in schema:
        return
    negated = schema["not"]
    words = negated.keys() - _REMARKS if isinstance(negated, dict) else set[str]()
    own = schema.get("type", _ALL_TYPES)
    if _is_none(negated):
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
