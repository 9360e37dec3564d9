"""JSON schemas in the words that llguidance has, by one walk: the same values are valid before and after it.

Keywords that the library lacks are said by others, left out where they constrain nothing by the specification (JSON Schema 2020-12 and the
drafts before it), or refused with where they stand. What it takes too widely says more: the library knows how many days each month has, but
the 29 February of any year, leap seconds at any time of day, and hostnames of any length and with any Punycode. Its white space is Unicode's,
and that of JSON schemas is ECMAScript's, which has U+FEFF and not U+0085. What it makes dearly of is said cheaply: two maps that are
joined say once what their members are, and optional properties of one schema share an expression where an object has many.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.adapters.llguidance.limits import MAX_REFERENCES
from nanoserve.adapters.llguidance.work import at_pointer
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
_LEAF: Final = frozenset({"type", "title", "description"})
"""What most schemas have alone."""
_PLAIN: Final = frozenset(
    {"type", "title", "description", "properties", "enum", "const", "$ref", "anyOf", "additionalProperties"}
    | {
        "items",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "$defs",
        "definitions",
    }
)
"""Keywords that the library has as they are."""
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
_LEAP_YEAR: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY: Final = f"([0-9]{{4}}-(0[13-9]|1[0-2]|02-([01]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_TIME: Final = "[0-9]{2}:[0-9]{2}:[0-5]"
"""Without leap seconds, which are allowed in one minute of the day, by the offset from UTC."""
_LABEL: Final = r"([^.xX][^.]*|[xX]([^.nN][^.]*|[nN]([^.-][^.]*|-[^.-][^.]*)?)?)"
"""Of a hostname, but for Punycode, of which most stands for no name."""
_BESIDE: Final[Mapping[str, Mapping[str, Any]]] = {
    "date": {"pattern": f"^{_DAY}"},
    "time": {"pattern": f"^{_TIME}"},
    "date-time": {"pattern": f"^{_DAY}[0-9-]*.{_TIME}"},
    "hostname": {"maxLength": 253, "pattern": rf"^{_LABEL}(\.{_LABEL})*$"},
}
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_BLANKS: Final = {r"\s": r"[[\s--\x{85}]\x{FEFF}]", r"\S": r"[^[\s--\x{85}]\x{FEFF}]"}
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SCHEMAS: Final = frozenset({"items", "additionalItems", "additionalProperties"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_DATA: Final = frozenset({"enum", "const", "default", "examples", "required", "type"})
_ADDRESS: Final = re.compile(r'"(?:\$?id|\$anchor)": "')
_NAMING: Final = frozenset({"properties", "patternProperties"})
_NOT_GROUPED: Final = frozenset(
    {"anyOf", "oneOf", "$ref", "enum", "const", "patternProperties", "minProperties", "maxProperties"}
)
"""What an object may not have whose optional properties are grouped: patterns must not meet others, and each name counts once."""
WIDE: Final = 100
"""Properties of an object from which on its optional ones are grouped: the library follows each of them alone, and each costs as much
as there are others, 5 ms for every member that is written where there are a thousand."""
ALIKE: Final = 32
"""Properties of the same schema that make a group."""


def in_known_words(kind: str, schema: Any, whitespace: str) -> dict[str, Any]:
    """The schema as the library reads it, with the `whitespace` of its JSON unless it says that itself; none for an empty pattern.

    Raises `BadValueError` for what it cannot keep, with where that stands. A schema whose `x-guidance` says `lenient` loses such
    words instead.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    said = schema.get("x-guidance")
    options = said if isinstance(said, dict) else {}
    found = _Walk(kind, schema, is_lenient=options.get("lenient") is True).of(schema, "#", is_read=True)
    if found is False:
        raise BadValueError(kind, "#: no value fits false, or a `not` of what anything fits")
    if not {"whitespace_flexible", "whitespace_pattern"} & options.keys():
        white = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
        options = {**options, **white}
    return {**found, "x-guidance": options}


class _Walk:
    """Of one schema and all within it."""

    def __init__(self, kind: str, root: Any, *, is_lenient: bool) -> None:
        self._kind, self._is_lenient = kind, is_lenient
        self._said_at = functools.cache(lambda place: _said_of_all_members(at_pointer(root, place)))
        text = json.dumps(root)
        self._references = 0
        self._joins = '"allOf":' in text
        self._has_addresses = _ADDRESS.search(text) is not None

    def of(self, schema: Any, place: str, *, is_read: bool) -> Any:
        """The schema that stands there; `is_read` where it counts even if nothing refers to it."""
        is_odd = isinstance(schema, dict) and "any" in str(schema.get("type"))
        if not isinstance(schema, dict) or (schema.keys() <= _LEAF and not is_odd):
            return schema
        schema = dict(schema)
        if not self._has_addresses and "allOf" in schema:
            self._say_once(schema)
        if is_odd or not schema.keys() <= _PLAIN:
            for change in (_core, _values, _strings, _members, _items, _conditions, _negation):
                change(schema)
        if _is_none(schema):
            return False
        if is_read:
            self._refuse(schema, place)
        if isinstance(reference := schema.get("$ref"), str):
            self._refer(reference)
        for word, value in schema.items():
            schema[word] = self._within(word, value, f"{place}/{word}", is_read=is_read)
        _say_exactly(schema)
        return schema if self._joins else _grouped(schema)

    def _within(self, word: str, value: Any, place: str, *, is_read: bool) -> Any:
        if word in _DATA or not isinstance(value, dict | list):
            return value
        if isinstance(value, list):
            is_read = is_read and word in _LISTS
            return [self.of(each, f"{place}/{index}", is_read=is_read) for index, each in enumerate(value)]
        if word in _MAPS:
            return {
                name: self.of(each, f"{place}/{name.replace('~', '~0').replace('/', '~1')}", is_read=is_read)
                for name, each in value.items()
            }
        return self.of(value, place, is_read=is_read and word in _SCHEMAS)

    def _refuse(self, schema: dict[str, Any], place: str) -> None:
        wrong = {word: _ADVICE[word] for word in _ADVICE.keys() & schema.keys()}
        if isinstance(pattern := schema.get("pattern"), str) and _LOOK_AROUND.search(pattern):
            wrong["pattern"] = "look-around is not known; write it without `(?=`, `(?!` and the like"
        for word, advice in wrong.items():
            if not self._is_lenient:
                raise BadValueError(self._kind, f"{place}/{word}: cannot be kept; {advice}")
            del schema[word]

    def _refer(self, reference: str) -> None:
        self._references += 1
        if not reference.startswith("#"):
            message = f"$ref: must begin with #, nothing is fetched; got {reference!r:.80}"
            raise BadValueError(self._kind, message)
        if self._references > MAX_REFERENCES:
            raise BadValueError(self._kind, f"$ref: may stand {MAX_REFERENCES} times, and stands more often")

    def _say_once(self, schema: dict[str, Any]) -> None:
        """Where of two maps that are joined only one says what the members are, the library does not join them with themselves."""
        joined = schema["allOf"]
        if not isinstance(joined, list) or [type(each) for each in joined] != [dict, dict]:
            return
        first, second = joined
        reference = str(first["$ref"]).removeprefix("#") if first.keys() == {"$ref"} else None
        said = _said_of_all_members(first) if reference is None else self._said_at(reference)
        if said is not None and said == second.get("additionalProperties") and _NAMING.isdisjoint(second):
            schema["allOf"] = [
                first,
                {key: each for key, each in second.items() if key != "additionalProperties"},
            ]


def _said_of_all_members(schema: Any) -> Any:
    """The schema of every member of a map; None where there is not one for all."""
    if not isinstance(schema, dict):
        return None
    said = schema.get("additionalProperties")
    named = [schema.get(each, {}) for each in _NAMING]
    is_same = all(isinstance(each, dict) and all(value == said for value in each.values()) for each in named)
    return said if is_same else None


def _grouped(schema: dict[str, Any]) -> dict[str, Any]:
    """An object whose optional properties of one schema are members whose names fit an expression, and come in any order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) < WIDE or not _NOT_GROUPED.isdisjoint(schema):
        return schema
    required = set(map(str, schema.get("required", ())))
    alike = defaultdict[str, list[str]](list)
    for name, each in properties.items():
        if isinstance(each, dict) and name not in required and name.isprintable():
            alike[json.dumps(each)].append(name)
    groups = [names for names in alike.values() if len(names) >= ALIKE]
    moved = {name for names in groups for name in names}
    patterns = {f"^(?:{'|'.join(map(_escaped, names))})$": properties[names[0]] for names in groups}
    kept = {name: each for name, each in properties.items() if name not in moved}
    return schema | {"properties": kept, "patternProperties": patterns}


def _escaped(name: str) -> str:
    return "".join(each if each.isalnum() else f"\\x{{{ord(each):x}}}" for each in name)


def _say_exactly(schema: dict[str, Any]) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = _ESCAPE.sub(lambda found: _BLANKS.get(found[0], found[0]), pattern)
    form = schema.get("format")
    if isinstance(form, str) and form in _BESIDE:
        _also(schema, _BESIDE[form])


def _is_any(schema: Any) -> bool:
    """Whether anything fits."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _REMARKS)


def _is_none(schema: Any) -> bool:
    """Whether nothing fits."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and _is_any(schema["not"]))


def _also(schema: dict[str, Any], *others: Any) -> None:
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
