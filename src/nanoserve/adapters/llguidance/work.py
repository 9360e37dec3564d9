"""The work of llguidance to make a grammar of JSON schemas and expressions, counted on sizes alone before any of it is done.

It joins what several keywords say of one value by building and copying it, definitions included, each time again. Its own limit counts joined values, not
how large they are. To find out whether any text keeps several patterns takes it twice as long with each one more.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

import attrs

from nanoserve.adapters.llguidance.keywords import REMARKS, TYPES
from nanoserve.ports.errors import BadValueError

MAX_PATTERNS: Final = 8
"""Patterns that may have to hold of one text."""
MAX_WORK: Final = 5_000_000
"""Work of all schemas of a constraint; the unit is a value copied, of which a processor of 2024 does ten in a microsecond."""
CHARACTER: Final = 10
"""Work for a character of a pattern."""
VISIT: Final = 100
"""To look at a schema, to join two values that have parts, or to write a grammar's rule for one."""
PLAIN: Final = 20
"""Work for a value without parts, such as one of an enumeration."""
PATTERN: Final = 3_000
"""To find out about a pattern, or about a pair of those that name properties."""
NAME_PAIRS: Final = 4
"""Pairs of an object's names, in a unit: each name is held against all others."""
CHOICE_PAIRS: Final = 16
"""Pairs of values below choices that must exclude each other, in a unit."""
PROPERTY: Final = 4_000
"""A class of Unicode's in an expression."""
FOLDED: Final = 100_000
"""A character beyond ASCII in an expression that ignores case, as it may end a range of all characters."""
MAX_DEPTH: Final = 128
"""Depth of joins within joins; the library's own."""
_REMARKS: Final = REMARKS | {"$defs", "definitions", "x-guidance"}
_JOINED: Final = frozenset({"allOf", "anyOf", "oneOf", "enum", "const", "$ref"})
_IGNORES_CASE: Final = re.compile(r"\?[a-hj-zA-Z-]*i|/[a-hj-z]*i")
_PROPERTY: Final = re.compile(r"\\[pP]")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]|\\[xuUpP]")
"""Each finds too much rather than too little, in text that may be anything."""
_ADDRESSES: Final = ("$id", "id", "$anchor")
_OTHERS: Final = ("additionalProperties", "unevaluatedProperties")


class _Kind(enum.Enum):
    ANY = enum.auto()
    NOTHING = enum.auto()
    REFERENCE = enum.auto()
    CHOICE = enum.auto()


@attrs.frozen(eq=False)
class _Value:
    """Known facts about a value.

    Attributes:
        kind: a JSON type, where it is known to be one.
        size: values within it, which a copy copies, and `work`, what its grammar costs.
        patterns: that its text must keep, and `expressions`, those that name its members.
        named: an object's members or an array's first items; `other`, any other one.
        options: what it may be; `reference`, what it is.
        is_exclusive: only one of the options may fit.
        is_bounded: the number of its members has bounds.
    """

    kind: _Kind | str
    size: int = 1
    work: int = VISIT
    patterns: int = 0
    expressions: int = 0
    named: Mapping[str, _Value] = attrs.field(factory=dict)
    other: _Value | None = None
    options: Sequence[_Value] = ()
    reference: str = ""
    is_exclusive: bool = False
    is_bounded: bool = False


_ANY: Final = _Value(_Kind.ANY)
_NOTHING: Final = _Value(_Kind.NOTHING)
_LITERAL: Final = _Value("string", work=PLAIN)
_LEAVES: Final = {each: _Value(each) for each in ("null", "boolean", "number", "integer", "string")}
_OF_LEAVES: Final = frozenset({"type", "title", "description", "default"})
"""Keywords that most schemas have alone, which are looked at fast."""


_TOO_MUCH: Final = "too much work; what allOf, anyOf, oneOf and $ref join, properties, patterns and classes of characters count together"


class Work:
    """Counts the work for all schemas of one constraint; `name` is what the client calls it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = MAX_WORK

    def add(self, schema: Any) -> None:
        """Raises `BadValueError` if that is too much, or where too many patterns may hold of one text."""
        try:
            self.spend(_Building(self._name, schema, self).of(schema).work, "schema")
        except RecursionError:
            raise BadValueError(self._name, "$ref: follows too long a chain of definitions") from None

    def add_expression(self, text: str, where: str) -> None:
        """Add the work of a regular expression, or of a grammar with many. Raises `BadValueError`, which names the place."""
        beyond = len(_BEYOND_ASCII.findall(text)) if _IGNORES_CASE.search(text) else 0
        classes = len(_PROPERTY.findall(text))
        self.spend(CHARACTER * len(text) + PROPERTY * classes + FOLDED * beyond, where)

    def spend(self, amount: int, where: str) -> None:
        """Raises `BadValueError` if no more is left."""
        self._left -= amount
        if self._left < 0:
            raise BadValueError(self._name, f"{where}: {_TOO_MUCH}")


class _Building:
    """The values of one schema, as the library builds them."""

    def __init__(self, name: str, root: Any, work: Work) -> None:
        self._name, self._work = name, work
        self._root = root
        self._defined: dict[str, _Value] = {}
        self._references: dict[str, _Value] = {}
        self._depth = 0

    @functools.cached_property
    def _addressed(self) -> list[Any]:
        return _with_addresses(self._root)

    def of(self, schema: Any) -> _Value:
        """The facts that a schema states."""
        if not isinstance(schema, dict):
            return _NOTHING if schema is False else _ANY
        if not schema.keys() - _REMARKS:
            return _ANY
        self._work.spend(VISIT, "schema")
        if schema.keys() <= _OF_LEAVES and (leaf := _LEAVES.get(str(schema.get("type")))):
            return leaf
        found = self._own(schema) if schema.keys() - _REMARKS - _JOINED else _ANY
        if "const" in schema:
            found = self._both(found, self._constant(schema["const"]))
        if isinstance(enumerated := schema.get("enum"), list):
            found = self._both(found, self._enumeration(enumerated))
        for each in _listed(schema, "allOf"):
            found = self._both(found, self.of(each))
        for keyword in ("anyOf", "oneOf"):
            if choices := _listed(schema, keyword):
                one = self._choice([self.of(each) for each in choices], is_exclusive=keyword == "oneOf")
                found = self._both(found, one)
        if isinstance(reference := schema.get("$ref"), str):
            found = self._both(found, self._referring(reference))
        return found

    def _own(self, schema: Mapping[str, Any]) -> _Value:
        """The facts that a schema states by keywords that are for one type each."""
        types = schema.get("type", TYPES)
        types = [types] if isinstance(types, str) else types if isinstance(types, list) else TYPES
        makers = {"string": self._text, "array": self._array, "object": self._object}
        return self._choice(
            [makers[each](schema) if each in makers else _Value(each) for each in map(str, types)]
        )

    def _text(self, schema: Mapping[str, Any]) -> _Value:
        patterns = [each for each in map(schema.get, ("pattern", "format")) if isinstance(each, str)]
        for each in patterns:
            self._work.add_expression(each, "pattern")
        return self._held("string", {}, _ANY, patterns=len(patterns)) if patterns else _Value("string")

    def _array(self, schema: Mapping[str, Any]) -> _Value:
        items = schema.get("items")
        first = items if isinstance(items, list) else _listed(schema, "prefixItems")
        other = self.of(schema.get("additionalItems") if isinstance(items, list) else items)
        return self._held("array", {str(place): self.of(each) for place, each in enumerate(first)}, other)

    def _object(self, schema: Mapping[str, Any]) -> _Value:
        named = {name: self.of(each) for name, each in _members(schema, "properties").items()}
        patterned = {
            f"/{each}/": self.of(value) for each, value in _members(schema, "patternProperties").items()
        }
        others = [*patterned.values(), *(self.of(schema[each]) for each in _OTHERS if each in schema)]
        other = reduce(self._either, others, _ANY)
        required = {each: other for each in _listed(schema, "required") if isinstance(each, str)}
        is_bounded = not schema.keys().isdisjoint({"minProperties", "maxProperties"})
        return self._held(
            "object", required | named | patterned, other, expressions=len(patterned), is_bounded=is_bounded
        )

    def _enumeration(self, values: list[Any]) -> _Value:
        if len(values) < 2 or any(isinstance(each, dict | list) for each in values):
            return self._choice([self._constant(each) for each in values])
        count = len(values)  # as above, of thousands that are alike
        return _Value(_Kind.CHOICE, 1 + count, VISIT + PLAIN * count, options=[_LITERAL] * count)

    def _constant(self, value: Any) -> _Value:
        if isinstance(value, list):
            value = {str(place): each for place, each in enumerate(value)}
        elif not isinstance(value, dict):
            return _LITERAL
        return self._held("object", {name: self._constant(each) for name, each in value.items()}, _NOTHING)

    def _held(
        self,
        kind: str,
        named: Mapping[str, _Value],
        other: _Value,
        *,
        patterns: int = 0,
        expressions: int = 0,
        is_bounded: bool = False,
    ) -> _Value:
        """A value of a JSON type. Expressions that name members are held against each other and against all names at once."""
        if patterns > MAX_PATTERNS:
            message = f"pattern: {MAX_PATTERNS} may apply to one text at once, and there are more"
            raise BadValueError(self._name, message)
        pairs = expressions * (expressions * PATTERN // 2 + len(named) * VISIT)
        self._work.spend(VISIT + pairs, "patternProperties")
        parts = [*named.values(), other]
        work = VISIT + patterns * PATTERN + sum(each.work for each in parts)
        if kind == "object":
            work += len(named) ** 2 * VISIT if is_bounded else len(named) ** 2 // NAME_PAIRS
        size = 1 + sum(each.size for each in parts)
        return _Value(kind, size, work, patterns, expressions, named, other, is_bounded=is_bounded)

    def _choice(self, options: Sequence[_Value], *, is_exclusive: bool = False) -> _Value:
        """One of several; `_NOTHING` is none of them."""
        kept = [each for each in options if each is not _NOTHING]
        if any(each is _ANY for each in kept):
            return _ANY
        if len(kept) < 2:
            return kept[0] if kept else _NOTHING
        size = 1 + sum(each.size for each in kept)
        if is_exclusive:
            self._work.spend(size**2 // CHOICE_PAIRS, "oneOf")
        patterns, work = max(each.patterns for each in kept), VISIT + sum(each.work for each in kept)
        return _Value(_Kind.CHOICE, size, work, patterns, options=kept, is_exclusive=is_exclusive)

    def _referring(self, reference: str) -> _Value:
        """A value that stands elsewhere, whose grammar is made once."""
        if reference not in self._references:
            self._references[reference] = _Value(_Kind.REFERENCE, reference=reference)
            self._work.spend(PLAIN * len(self._addressed), "$ref")
            found = _definitions(self._addressed, reference)
            self._defined[reference] = defined = reduce(self._either, map(self.of, found), _ANY)
            self._work.spend(defined.work, "$ref")
        return self._references[reference]

    def _either(self, one: _Value, other: _Value) -> _Value:
        """The facts of a value of which either the one holds or the other."""
        if one is other or one is _ANY or other is _ANY:
            return other if one is _ANY else one
        return self._choice([one, other])

    def _both(self, one: _Value, other: _Value) -> _Value:
        """The facts of a value that two schemas describe together."""
        if one is _ANY or other is _ANY:
            return other if one is _ANY else one
        if one is _NOTHING or other is _NOTHING:
            return _NOTHING
        self._work.spend(PLAIN, "allOf")
        if self._depth == MAX_DEPTH:
            raise BadValueError(self._name, "$ref: definitions that refer to themselves are joined")
        self._depth += 1
        joined = self._joined(one, other)
        self._depth -= 1
        return joined

    def _joined(self, one: _Value, other: _Value) -> _Value:
        pairs = ((one, other), (other, one))
        for each, beside in pairs:
            if each.kind is _Kind.REFERENCE:
                # A definition that stands within itself says nothing more.
                defined = self._defined.get(each.reference, _ANY)
                self._work.spend(defined.size, "$ref")
                return self._both(defined, beside)
        for each, beside in pairs:
            if each.kind is _Kind.CHOICE:
                self._work.spend(len(each.options) * beside.size, "anyOf")
                options = [self._both(option, beside) for option in each.options]
                return self._choice(options, is_exclusive=each.is_exclusive)
        if one.kind != other.kind:
            return _NOTHING
        if one.size == other.size == 1:
            return one if one.work < other.work else other
        rest, others = one.other or _ANY, other.other or _ANY
        names = dict.fromkeys([*one.named, *other.named])
        copied = len(one.named) * others.size + (len(names) - len(one.named)) * rest.size
        self._work.spend(copied, "allOf")
        return self._held(
            str(one.kind),
            {each: self._both(one.named.get(each, rest), other.named.get(each, others)) for each in names},
            self._both(rest, others),
            patterns=one.patterns + other.patterns,
            expressions=one.expressions + other.expressions,
            is_bounded=one.is_bounded or other.is_bounded,
        )


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _members(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def _with_addresses(schema: Any) -> list[Any]:
    """A schema, and those within it that have an address or a name of their own."""
    return [schema, *(each for each in _addressed(schema) if each is not schema)]


def _addressed(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for each in schema for found in _addressed(each)]
    if not isinstance(schema, dict):
        return []
    inner = [found for each in schema.values() for found in _addressed(each)]
    return [schema, *inner] if any(isinstance(schema.get(each), str) for each in _ADDRESSES) else inner


def _definitions(schemas: Sequence[Any], reference: str) -> list[Any]:
    """The schemas that a reference such as `#/$defs/name` may stand for in schemas `_with_addresses`."""
    name = unquote(reference.removeprefix("#"))
    if name and not name.startswith("/"):
        names = (name, f"#{name}")
        return [each for each in schemas if any(each.get(key) in names for key in _ADDRESSES)]
    found = [at_pointer(each, name) for each in schemas]
    return [each for each in found if each is not None]


def at_pointer(schema: Any, place: str) -> Any:
    """The value at a JSON pointer; None if there is none."""
    for written in filter(None, place.split("/")):
        part = written.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
            schema = schema[int(part)]
        else:
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema
