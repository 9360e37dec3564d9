"""How many patterns of a JSON schema may have to hold of one text at once.

To find out whether any text keeps several patterns takes llguidance twice as long with each one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

import attrs

from nanoserve.ports.errors import BadValueError

MAX_PATTERNS: Final = 8
MAX_JOINED: Final = 50_000
"""Values that are looked at to count them."""
_OTHERS: Final = ("additionalProperties", "unevaluatedProperties")


@attrs.frozen
class _Value:
    """The patterns of a value; `named` are its members, `other` is any other member, `item` any of its items."""

    count: int = 0
    named: Mapping[str, _Value] = attrs.field(factory=dict)
    other: _Value | None = None
    item: _Value | None = None


_NONE: Final = _Value()


def _value(count: int, named: Mapping[str, _Value], other: _Value, item: _Value) -> _Value:
    """Without what has no patterns."""
    kept = {each: value for each, value in named.items() if value is not _NONE}
    is_none = not count and not kept and other is _NONE and item is _NONE
    return _NONE if is_none else _Value(count, kept, other, item)


def check_patterns(name: str, schema: Any) -> None:
    """Raises `BadValueError` where there are too many; `name` is what the client calls the schema."""
    _Counting(name, schema).of(schema)


class _Counting:
    def __init__(self, name: str, root: Any) -> None:
        self._name, self._root = name, root
        self._left = MAX_JOINED
        self._by_reference: dict[str, _Value] = {}

    def of(self, schema: Any) -> _Value:
        """What a schema says; one that refers to itself says nothing more by that."""
        if not isinstance(schema, dict):
            return _NONE
        found = self._own(schema)
        for each in _listed(schema, "allOf"):
            found = self._both(found, self.of(each))
        for keyword in ("anyOf", "oneOf"):
            found = self._both(found, reduce(self._either, map(self.of, _listed(schema, keyword)), _NONE))
        for keyword in ("$defs", "definitions"):
            for each in _members(schema, keyword).values():
                self.of(each)
        reference = schema.get("$ref")
        return self._both(found, self._referred(reference)) if isinstance(reference, str) else found

    def _own(self, schema: Mapping[str, Any]) -> _Value:
        others = [*_members(schema, "patternProperties").values(), *(schema.get(each) for each in _OTHERS)]
        items = schema.get("items")
        items = items if isinstance(items, list) else [items]
        return _value(
            sum(isinstance(schema.get(each), str) for each in ("pattern", "format")),
            {member: self.of(each) for member, each in _members(schema, "properties").items()},
            reduce(self._either, map(self.of, others), _NONE),
            reduce(self._either, map(self.of, [*items, *_listed(schema, "prefixItems")]), _NONE),
        )

    def _referred(self, reference: str) -> _Value:
        if reference not in self._by_reference:
            self._by_reference[reference] = _NONE
            found = self._root
            for written in filter(None, reference.removeprefix("#").split("/")):
                part = written.replace("~1", "/").replace("~0", "~")
                found = found.get(part) if isinstance(found, dict) else None
            self._by_reference[reference] = self.of(found)
        return self._by_reference[reference]

    def _both(self, one: _Value | None, other: _Value | None) -> _Value:
        """Of a value that both say something of."""
        if one is None or one is _NONE or other is None or other is _NONE:
            return one if one is not None and one is not _NONE else other or _NONE
        if (count := one.count + other.count) > MAX_PATTERNS:
            message = f"pattern: {MAX_PATTERNS} may have to hold of one text at once, and there are more"
            raise BadValueError(self._name, message)
        self._count()
        return _value(
            count,
            {
                each: self._both(one.named.get(each, one.other), other.named.get(each, other.other))
                for each in _names(one, other)
            },
            self._both(one.other, other.other),
            self._both(one.item, other.item),
        )

    def _either(self, one: _Value | None, other: _Value | None) -> _Value:
        """Of a value of which either one says something or the other."""
        if one is None or one is _NONE or other is None or other is _NONE:
            return one if one is not None and one is not _NONE else other or _NONE
        self._count()
        return _value(
            max(one.count, other.count),
            {
                each: self._either(one.named.get(each, one.other), other.named.get(each, other.other))
                for each in _names(one, other)
            },
            self._either(one.other, other.other),
            self._either(one.item, other.item),
        )

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadValueError(self._name, "allOf: joins too many schemas with each other")


def _names(one: _Value, other: _Value) -> Iterable[str]:
    return dict.fromkeys([*one.named, *other.named])


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _members(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}
