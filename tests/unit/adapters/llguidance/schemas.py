"""Random JSON schemas of what can be kept, and small enough for a random model to come to an end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Maker = Callable[[random.Random, int], dict[str, Any]]


def random_schema(draw: random.Random) -> dict[str, Any]:
    """A schema that `draw` alone decides; some refer to a part of themselves."""
    schema = _part(draw, 2)
    if draw.random() < 0.8:
        return schema
    return {"type": "array", "items": {"$ref": "#/$defs/it"}, "maxItems": 2, "$defs": {"it": schema}}


def _part(draw: random.Random, depth: int) -> dict[str, Any]:
    return draw.choice(_SCALARS + _HOLDERS * 2 if depth else _SCALARS)(draw, depth)


def _plain(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": draw.choice(["boolean", "null"])}


def _integer(draw: random.Random, _depth: int) -> dict[str, Any]:
    low = draw.randint(-30, 30)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 2000)}


def _number(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "number", "minimum": draw.randint(-9, 0), "exclusiveMaximum": draw.randint(1, 50)}


def _string(draw: random.Random, _depth: int) -> dict[str, Any]:
    low = draw.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + draw.randint(0, 6)}


def _pattern(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": draw.choice(["^[a-z]{1,5}$", "^(ab|c){1,3}$", r"^\d{2}-\d$", "^x?y$"]),
    }


def _format(draw: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "string", "format": draw.choice(["date", "time", "date-time", "ipv4", "uuid"])}


def _values(draw: random.Random, _depth: int) -> dict[str, Any]:
    values = [1, "two", None, [3], {"four": 4}, "five\n\"'é", True]
    if draw.random() < 0.3:
        return {"const": draw.choice(values)}
    return {"enum": draw.sample(values, draw.randint(1, len(values)))}


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    low = draw.randint(0, 2)
    return {"type": "array", "items": _part(draw, depth - 1), "minItems": low, "maxItems": low + 2}


def _any_of(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_part(draw, depth - 1) for _ in range(draw.randint(1, 3))]}


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(["name", "größe", "a b", 'q"', "$x"], draw.randint(0, 3))
    properties = {name: _part(draw, depth - 1) for name in names}
    required = [name for name in names if draw.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_SCALARS: list[Maker] = [_plain, _integer, _number, _string, _pattern, _format, _values]
_HOLDERS: list[Maker] = [_array, _any_of, _object]
