"""Constraints of answers: clients' descriptions in their several forms as one `Constraint`, and that of an order with its tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import attrs

from nanoserve.domain.text.dialects.schema import closed, held, outline
from nanoserve.domain.text.dialects.tokenized import json_schema_of
from nanoserve.entrypoints.app.generation import Reading
from nanoserve.entrypoints.app.orders import Order
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, ConstraintKind
from nanoserve.ports.tool_calls import Tool

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
        raise BadValueError("structured_outputs", "cannot be combined with response_format")
    return found[0] or found[1]


def _of_structured_outputs(value: object) -> Constraint | None:
    if value is None:
        return None
    fields = _object("structured_outputs", value)
    unset = {"json_object": False}
    given = {
        name: each
        for name, each in fields.items()
        if name not in _OPTIONS and each is not None and each is not unset.get(name)
    }
    if unknown := given.keys() - set(_MEMBERS):
        raise BadValueError(f"structured_outputs.{min(unknown)}", f"is none of {', '.join(_MEMBERS)}")
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


class AnswerConstraints:
    """Makes the constraint of an order's answers from its format, its tools and its budget.

    Args:
        check: begins to look at a constraint for a client, elsewhere, and raises `BadValueError` for one that cannot be kept;
            True for one that is composed around another that was looked at. None checks nothing.
        whitespace: what stands between the parts of JSON where an order does not say it.
    """

    def __init__(
        self, check: Callable[[Constraint, str, bool], Future[None]] | None, whitespace: str
    ) -> None:
        self._check_constraint = check
        self._whitespace = whitespace

    async def of(self, order: Order, reading: Reading | None) -> Constraint | None:
        """The constraint of the answers, checked as far as it can be without the engine; raises `BadValueError`."""
        name, client = order.constraint_name, order.client.identity
        if order.format is not None and order.format.constraint.whitespace == BOUNDED_WHITESPACE:
            constraint = attrs.evolve(order.format.constraint, whitespace=self._whitespace)
            order = attrs.evolve(order, format=attrs.evolve(order.format, constraint=constraint))
        found = None if order.format is None else order.format.constraint
        if found is not None:  # alone first: what is wrong with a part is said in its own words
            await self._check(client, name, found)
        if reading is not None:
            for tool in reading.tools:
                if tool.form is not None:  # also before it is changed, which takes as long as it is large
                    await self._check(client, "tools", tool.form, f"{shown(tool.name)} ")
            found = await asyncio.to_thread(_composed, reading, order)
        if found is None:
            return None
        if order.sampling.ignore_eos:
            raise BadValueError("ignore_eos", f"cannot be combined with {name}, which says where it ends")
        if reading is None or not reading.tools:
            await self._check(client, name, found, is_composed=reading is not None)
            return found
        reading = attrs.evolve(
            reading, tools=tuple([await self._held(client, tool) for tool in reading.tools])
        )
        try:
            return await self._checked(client, name, reading, order)
        except BadValueError:
            outlined = tuple(
                tool if tool.strict else attrs.evolve(tool, parameters=outline(tool.parameters))
                for tool in reading.tools
            )
            if outlined == reading.tools:
                raise
            return await self._checked(client, name, attrs.evolve(reading, tools=outlined), order)

    async def _checked(self, client: str, name: str, reading: Reading, order: Order) -> Constraint | None:
        found = await asyncio.to_thread(_composed, reading, order)
        if found is not None:
            await self._check(client, name, found)
        return found

    async def _held(self, client: str, tool: Tool) -> Tool:
        """A tool in the form that a grammar can enforce.

        Raises `BadValueError` for a strict one that cannot be enforced; any other loses the parts that cannot.
        """
        if tool.form is not None:
            return tool
        options = {} if tool.strict else {"x-guidance": {"lenient": True}}
        schema = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({**held(tool), **options}))
        try:
            await self._check(client, "tools", schema, f"{shown(tool.name)} ")
        except BadValueError:
            if tool.strict:
                raise
            return attrs.evolve(tool, parameters=outline(tool.parameters))
        return tool

    async def _check(
        self, client: str, name: str, constraint: Constraint, which: str = "", *, is_composed: bool = False
    ) -> None:
        if self._check_constraint is None:
            return
        try:
            await asyncio.wrap_future(self._check_constraint(constraint, client, is_composed))
        except BadValueError as error:
            raise BadValueError(name, f"{which}cannot be enforced: {error}") from None


def _composed(reading: Reading, order: Order) -> Constraint | None:
    """The constraint of the whole answer, so that its text and its calls are as ordered.

    Raises `BadValueError` for a format that cannot be combined with calls.
    """
    budget = None if order.budget is None else order.budget.tokens
    schema = None if order.format is None else json_schema_of(order.format.constraint)
    if order.format is not None and schema is None and reading.tools:
        raise BadValueError(order.format.name, "can be combined with callable tools only if it is JSON")
    if order.format is None or reading.tools:
        return reading.dialect.grammar(
            reading.tools,
            order.calls,
            schema=schema,
            whitespace=BOUNDED_WHITESPACE if order.format is None else order.format.constraint.whitespace,
            prompt_tail=reading.prompt_tail,
            budget=budget,
        )
    return reading.dialect.behind_reasoning(
        order.format.constraint, prompt_tail=reading.prompt_tail, budget=budget
    )
