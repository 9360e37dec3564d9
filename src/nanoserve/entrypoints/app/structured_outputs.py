"""Clients' descriptions of the form of an answer, in their several forms, as one `Constraint`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.domain.text.dialects.schema import closed
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, ConstraintKind

_OPTIONS: Final = frozenset({"disable_any_whitespace"})
_MEMBERS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


def constraint_of(*, structured_outputs: object = None, response_format: object = None) -> Constraint | None:
    """The constraint that a request asks for; None for none.

    Whether it can be kept is for the engine's grammars to say. Raises `BadValueError`, which names the field.

    Args:
        structured_outputs: `{"json": schema}`, `{"json_object": true}`, `{"regex": text}`, `{"choice": [texts]}`,
            `{"grammar": lark or gbnf}` or `{"structural_tag": object}`, and beside it `disable_any_whitespace`.
        response_format: `{"type": "text"}`, `{"type": "json_object"}`, `{"type": "json_schema", "json_schema": {"schema": schema}}` or
            `{"type": "structural_tag", ...}`; also with `schema` beside `type`. Objects are closed where it is `strict`.
    """
    found = [_of_structured_outputs(structured_outputs), _of_response_format(response_format)]
    if all(found):
        raise BadValueError("structured_outputs", "may not stand beside response_format")
    return found[0] or found[1]


def _of_structured_outputs(value: object) -> Constraint | None:
    if value is None:
        return None
    fields = _object("structured_outputs", value)
    given = {
        name: each for name, each in fields.items() if name not in _OPTIONS and each not in (None, False)
    }
    if unknown := given.keys() - set(_MEMBERS):
        raise BadValueError(
            f"structured_outputs.{min(unknown)}", f"is not known; there are {', '.join(_MEMBERS)}"
        )
    if len(given) > 1:
        raise BadValueError("structured_outputs", f"may hold one of {', '.join(sorted(given))}")
    for name, each in given.items():
        is_compact = bool(fields.get("disable_any_whitespace"))
        constraint = _constraint(name, f"structured_outputs.{name}", each)
        return attrs.evolve(constraint, whitespace="" if is_compact else BOUNDED_WHITESPACE)
    return None


def _of_response_format(value: object) -> Constraint | None:
    if value is None:
        return None
    fields = _object("response_format", value)
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT, "")
        case "json_schema":
            body = fields.get("json_schema", fields)
            body = _object("response_format.json_schema", body)
            schema = body.get("schema", body.get("json_schema"))
            if schema is None:
                return Constraint(ConstraintKind.JSON_OBJECT, "")
            if body.get("strict") is True and isinstance(schema, Mapping):
                schema = closed(schema)
            return _constraint("json", "response_format.json_schema.schema", schema)
        case "structural_tag":
            return _constraint("structural_tag", "response_format", fields)
    message = f"must be text, json_object, json_schema or structural_tag, got {fields.get('type')!r:.40}"
    raise BadValueError("response_format.type", message)


def _constraint(member: str, name: str, value: Any) -> Constraint:
    """The constraint of one member of `structured_outputs`; schemas and tags may be objects, or written as text."""
    match member:
        case "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT, "")
        case "regex":
            return Constraint(ConstraintKind.REGEX, _text(name, value))
        case "grammar":  # GBNF has another sign between a name and what it stands for than Lark
            is_gbnf = "::=" in _text(name, value)
            return Constraint(ConstraintKind.GBNF if is_gbnf else ConstraintKind.LARK, value)
        case "choice":
            return Constraint(ConstraintKind.CHOICE, _written(name, value))
    kind = ConstraintKind.JSON_SCHEMA if member == "json" else ConstraintKind.STRUCTURAL_TAG
    return Constraint(kind, value if isinstance(value, str) else _written(name, value))


def _object(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadValueError(name, f"must be an object, got {type(value).__name__}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadValueError(name, "must be a text that is not empty")
    return value


def _written(name: str, value: object) -> str:
    """JSON, members in their order."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValueError(name, f"must be JSON: {error}") from None
