"""JSON schemas in the words that llguidance has, by one walk: the same values are valid before and after it.

Keywords that the library lacks are said by others, left out, or refused with where they stand. What it takes too widely says more: the library knows how many
days each month has, but the 29 February of any year, leap seconds at any time of day, and hostnames of any length and with any Punycode. Its white space is
Unicode's, and that of JSON schemas is ECMAScript's, which has U+FEFF and not U+0085. What is expensive to it is said cheaply: two maps that are joined say once
what their members are, and in a wide object optional properties of one schema share an expression.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from nanoserve.adapters.llguidance.keywords import also, is_none, say_otherwise
from nanoserve.adapters.llguidance.limits import MAX_REFERENCES
from nanoserve.adapters.llguidance.work import at_pointer
from nanoserve.ports.errors import BadValueError

LEAF: Final = frozenset({"type", "title", "description"})
"""Keywords that most schemas have alone."""
_PLAIN: Final = (
    LEAF
    | {"properties", "additionalProperties", "items", "anyOf", "$ref", "$defs", "definitions"}
    | {"enum", "const", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"}
)
"""Keywords that the library has as they are."""
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
_LEAP_YEAR: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY: Final = f"([0-9]{{4}}-(0[13-9]|1[0-2]|02-([01]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_TIME: Final = "[0-9]{2}:[0-9]{2}:[0-5]"
"""Without leap seconds, which are allowed in one minute of the day, by the offset from UTC."""
_LABEL: Final = r"([^.xX][^.]*|[xX]([^.nN][^.]*|[nN]([^.-][^.]*|-[^.-][^.]*)?)?)"
"""Label of a hostname, but for Punycode, of which most stands for no name."""
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
_REFERENCE: Final = re.compile(r'"\$ref": ("#(?:[^"\\]|\\.)*")')
_ADDRESS: Final = re.compile(r'"(?:\$?id|\$anchor)": "')
_NAMING: Final = frozenset({"properties", "patternProperties"})
_NOT_GROUPED: Final = frozenset(
    {"anyOf", "oneOf", "$ref", "enum", "const", "patternProperties", "minProperties", "maxProperties"}
)
"""Keywords that keep optional properties from being grouped: patterns must not meet others, and each name counts once."""
WIDE: Final = 100
"""Properties of an object from which on its optional ones are grouped: the library follows each of them alone, and each costs as much
as there are others, 5 ms for every member that is written where there are a thousand."""
ALIKE: Final = 32
"""Properties of the same schema that make a group."""
MAX_GROUPS: Final = 16
"""Groups of an object, the largest ones; the library holds the names of each against those of all others."""
MAX_UNLIKE: Final = 500
"""Optional properties of an object that are in no group."""


def in_known_words(kind: str, schema: Any, whitespace: str) -> dict[str, Any]:
    """The schema as the library reads it, with the `whitespace` of its JSON unless it says that itself; none for an empty pattern.

    Raises `BadValueError` for what it cannot keep, with where that stands. A schema whose `x-guidance` says `lenient` loses such words instead.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    said = schema.get("x-guidance")
    options = said if isinstance(said, dict) else {}
    found = _Walk(kind, schema, is_lenient=options.get("lenient") is True).of(schema, "#", is_read=True)
    if found is False:
        raise BadValueError(kind, "#: no value fits false, a `not` of anything, or a `$ref` to itself")
    if not {"whitespace_flexible", "whitespace_pattern"} & options.keys():
        white = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
        options = {**options, **white}
    return {**(found if isinstance(found, dict) else {}), "x-guidance": options}


class _Walk:
    """A walk through one schema and all within it."""

    def __init__(self, kind: str, root: Any, *, is_lenient: bool) -> None:
        self._kind, self._is_lenient = kind, is_lenient
        self._said_at = functools.cache(lambda place: _said_of_all_members(at_pointer(root, place)))
        text = json.dumps(root)
        self._references = 0
        self._joins = '"allOf":' in text
        self._has_addresses = _ADDRESS.search(text) is not None
        self._endless = _endless(root, map(json.loads, _REFERENCE.findall(text)[:MAX_REFERENCES]))

    def of(self, schema: Any, place: str, *, is_read: bool) -> Any:
        """The schema that stands there; `is_read` where it counts even if nothing refers to it."""
        is_odd = isinstance(schema, dict) and "any" in str(schema.get("type"))
        if not isinstance(schema, dict) or (schema.keys() <= LEAF and not is_odd):
            return schema
        schema = dict(schema)
        if not self._has_addresses and "allOf" in schema:
            self._say_once(schema)
        if is_odd or not schema.keys() <= _PLAIN:
            say_otherwise(schema)
        if is_none(schema):
            return False
        if is_read:
            self._refuse(schema, place)
        if isinstance(reference := schema.get("$ref"), str):
            self._refer(reference)
            if reference in self._endless:  # no value fits it
                return self._is_lenient
        for word, value in schema.items():
            schema[word] = self._within(word, value, f"{place}/{word}", is_read=is_read)
        _say_exactly(schema)
        schema = schema if self._joins else _grouped(schema)
        named, required = schema.get("properties", {}), schema.get("required", ())
        is_usual = isinstance(named, dict) and isinstance(required, list | tuple)
        unlike = len(named) - len(required) if is_usual else 0
        if unlike > MAX_UNLIKE:
            message = f"{MAX_UNLIKE} optional ones may have schemas of their own, got {unlike}"
            raise BadValueError(self._kind, f"{place}/properties: {message}")
        return schema

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
                raise BadValueError(self._kind, f"{place}/{word}: cannot be enforced; {advice}")
            del schema[word]

    def _refer(self, reference: str) -> None:
        self._references += 1
        if not reference.startswith("#"):
            message = f"$ref: must begin with #, nothing is fetched; got {reference!r:.80}"
            raise BadValueError(self._kind, message)
        if self._references > MAX_REFERENCES:
            raise BadValueError(self._kind, f"$ref: may occur {MAX_REFERENCES} times, and occurs more often")

    def _say_once(self, schema: dict[str, Any]) -> None:
        """Where of two maps that are joined only one says what the members are, the library does not join them with themselves."""
        joined = schema["allOf"]
        if not isinstance(joined, list) or [type(each) for each in joined] != [dict, dict]:
            return
        first, second = joined
        reference = str(first["$ref"]).removeprefix("#") if first.keys() == {"$ref"} else None
        said = _said_of_all_members(first) if reference is None else self._said_at(reference)
        if said is not None and said == second.get("additionalProperties") and _NAMING.isdisjoint(second):
            others = {key: each for key, each in second.items() if key != "additionalProperties"}
            schema["allOf"] = [first, others]


def _endless(root: Any, references: Iterable[str]) -> Collection[str]:
    """The references that lead to nothing but references: an answer would end where one of them begins."""
    left = {each: at_pointer(root, each.removeprefix("#")) for each in references}
    waiting = defaultdict[str, list[str]](list)
    asked = [*left]
    while asked:
        each, met = asked.pop(), list[str]()
        if each in left and _leads_on(left[each], left, met):
            del left[each]
            asked += waiting[each]
        for other in met:
            waiting[other].append(each)
    return left.keys()


def _leads_on(schema: Any, left: Collection[str], met: list[str]) -> bool:
    """True if a value may fit where none fits the references that are left, of which it has `met` some."""
    if not isinstance(schema, dict):
        return schema is not False
    if (reference := str(schema.get("$ref"))) in left:
        met.append(reference)
        return False
    choices = [each for word in ("anyOf", "oneOf") if isinstance(each := schema.get(word), list) and each]
    joined = schema.get("allOf")
    return all(any(_leads_on(each, left, met) for each in choice) for choice in choices) and all(
        _leads_on(each, left, met) for each in (joined if isinstance(joined, list) else ())
    )


def _said_of_all_members(schema: Any) -> Any:
    """The schema of every member of a map; None if there is not one for all."""
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
            alike[repr(each)].append(name)
    groups = [names for names in sorted(alike.values(), key=len)[-MAX_GROUPS:] if len(names) >= ALIKE]
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
        also(schema, _BESIDE[form])
