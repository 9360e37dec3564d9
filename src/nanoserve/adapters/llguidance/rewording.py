"""JSON schemas in other words: what llguidance takes too widely says more, and a map says only once what its members are.

The library knows how many days each month has, but the 29 February of any year, leap seconds at any time of day, and hostnames of any length
and with any Punycode. Its white space is Unicode's, and that of JSON schemas is ECMAScript's, which has U+FEFF and not U+0085.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

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
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_NAMING: Final = frozenset({"properties", "patternProperties"})
_ADDRESSES: Final = ("$id", "id", "$anchor")
_DATA: Final = frozenset({"enum", "const", "default", "examples"})


def with_exact_formats(schema: Any) -> Any:
    """The same schema, or one that says more where a format alone says too little."""
    return _reworded(schema, _exact)


def with_whitespace(schema: dict[str, Any], pattern: str) -> dict[str, Any]:
    """The same schema with the white space of its JSON, unless it says that itself; without any for an empty pattern."""
    said = schema.get("x-guidance")
    options = said if isinstance(said, dict) else {}
    if not {"whitespace_flexible", "whitespace_pattern"} & options.keys():
        options = options | ({"whitespace_pattern": pattern} if pattern else {"whitespace_flexible": False})
    return schema | {"x-guidance": options}


def without_repetition(schema: Any) -> Any:
    """The same schema, where of two maps that are joined only one says what the members are.

    The library joins the members with themselves otherwise, and everything in them, as often as they are referred to.
    """
    if len(addressed(schema)) > 1:
        return schema
    said = functools.cache(lambda place: _said_of_all_members(_at(schema, place)))
    return _reworded(schema, lambda each: _said_once(each, said))


def addressed(schema: Any) -> list[Any]:
    """A schema, and those within it that have an address or a name of their own."""
    return [schema, *(each for each in _addressed(schema) if each is not schema)]


def _addressed(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for each in schema for found in _addressed(each)]
    if not isinstance(schema, dict):
        return []
    inner = [found for each in schema.values() for found in _addressed(each)]
    return [schema, *inner] if any(isinstance(schema.get(each), str) for each in _ADDRESSES) else inner


def definitions(schemas: Sequence[Any], reference: str) -> list[Any]:
    """What a reference such as `#/$defs/name` may stand for in schemas that are `addressed`."""
    name = unquote(reference.removeprefix("#"))
    if name and not name.startswith("/"):
        names = (name, f"#{name}")
        return [each for each in schemas if any(each.get(key) in names for key in _ADDRESSES)]
    found = [_at(each, name) for each in schemas]
    return [each for each in found if each is not None]


def _at(schema: Any, place: str) -> Any:
    """What stands at a JSON pointer; None where nothing does."""
    for written in filter(None, place.split("/")):
        part = written.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
            schema = schema[int(part)]
        else:
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema


def written(schema: Any) -> str:
    """As JSON, members in their order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _reworded(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Each schema in it changed, those within it first."""
    if isinstance(schema, list):
        return [_reworded(each, change) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return change(
        {key: value if key in _DATA else _inside(key, value, change) for key, value in schema.items()}
    )


def _inside(key: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if key in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _reworded(each, change) for name, each in value.items()}
    return _reworded(value, change)


def _exact(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema |= {"pattern": _ESCAPE.sub(lambda found: _BLANKS.get(found[0], found[0]), pattern)}
    form = schema.get("format")
    if not isinstance(form, str) or form not in _BESIDE:
        return schema
    others = schema.get("allOf", [])
    return schema | {"allOf": [*others, _BESIDE[form]] if isinstance(others, list) else others}


def _said_once(schema: dict[str, Any], said_at: Callable[[str], Any]) -> dict[str, Any]:
    joined = schema.get("allOf")
    if not isinstance(joined, list) or len(joined) != 2 or not all(isinstance(each, dict) for each in joined):
        return schema
    first, second = joined
    is_reference = first.keys() == {"$ref"}
    said = said_at(str(first["$ref"]).removeprefix("#")) if is_reference else _said_of_all_members(first)
    if said is None or said != second.get("additionalProperties") or not _NAMING.isdisjoint(second):
        return schema
    return schema | {"allOf": [first, {key: second[key] for key in second if key != "additionalProperties"}]}


def _said_of_all_members(schema: Any) -> Any:
    """The schema of every member of a map; None where there is not one for all."""
    if not isinstance(schema, dict):
        return None
    said = schema.get("additionalProperties")
    named = [schema.get(each, {}) for each in _NAMING]
    is_same = all(isinstance(each, dict) and all(value == said for value in each.values()) for each in named)
    return said if is_same else None
