"""The parts of an answer, put together from its events, and how the answers of one order are read."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

from nanoserve.domain.text.dialects.tokenized import (
    AnswerParser,
    TokenizedDialect,
    choose_dialect,
    json_schema_of,
)
from nanoserve.entrypoints.app.orders import Order
from nanoserve.ports.driven import DialectFacts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint
from nanoserve.ports.tool_calls import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    InputDelta,
    ReasoningDelta,
    TextDelta,
    Tool,
)


@attrs.frozen
class ReasoningPart:
    """A part of the model's reasoning."""

    text: str


@attrs.frozen
class TextPart:
    """A part of the answer's text."""

    text: str


@attrs.frozen
class CallPart:
    """A tool that it called; `arguments` are the text of a JSON object, unless the model wrote something else.

    Of a tool that `is_custom` they are its text.
    """

    id: str
    name: str
    arguments: str
    is_custom: bool = False


Part = ReasoningPart | TextPart | CallPart


@attrs.frozen
class Reading:
    """How the answers to one prompt are read.

    Attributes:
        tools: those that may be called.
        prompt_tail: the end of the prompt's text, which may have begun the reasoning.
        token_text: the text of a token, where reasoning is counted by text.
    """

    dialect: TokenizedDialect
    tools: tuple[Tool, ...]
    prompt_tail: str
    token_text: Callable[[int], str] | None = None

    def constraint(self, order: Order) -> Constraint | None:
        """The constraint of the whole answer, so that its text and its calls are as ordered.

        Raises `BadValueError` for a format that does not go with calls.
        """
        budget = None if order.budget is None else order.budget.tokens
        schema = None if order.format is None else json_schema_of(order.format.constraint)
        if order.format is not None and schema is None and self.tools:
            raise BadValueError(order.format.name, "goes with tools that may be called only where it is JSON")
        if order.format is None or self.tools:
            return self.dialect.grammar(
                self.tools,
                order.calls,
                schema=schema,
                whitespace=BOUNDED_WHITESPACE if order.format is None else order.format.constraint.whitespace,
                prompt_tail=self.prompt_tail,
                budget=budget,
            )
        return self.dialect.behind_reasoning(
            order.format.constraint, prompt_tail=self.prompt_tail, budget=budget
        )

    def marks_besides(self, texts: Collection[str]) -> Collection[int]:
        """The tokens that are marks, but for those that are one of the texts."""
        marks = self.dialect.control_tokens.items() if texts else ()
        return [token_id for token_id, mark in marks if mark not in texts]

    def parser(self) -> AnswerParser:
        """Of one more answer."""
        return self.dialect.parser(
            tools=self.tools,
            prompt_tail=self.prompt_tail,
            id_seed=secrets.token_hex(16),
            token_text=self.token_text,
        )


def choose_reading(facts: DialectFacts, name: str | None) -> Callable[[str], Reading] | None:
    """How answers are read where no tools are offered: in the model's dialect, or in the one of that name.

    Calls are looked for all the same, so that a model that writes one is understood. Takes the prompt's text; None where
    nothing says which dialect it is. Raises `ModelLoadError`.
    """
    dialect = choose_dialect(facts, name)
    tools = (Tool(name=""),)
    return None if dialect is None else lambda prompt: Reading(dialect, tools=tools, prompt_tail=prompt)


def joined(events: Iterable[AnswerEvent]) -> list[Part]:
    """The parts that the events are deltas of."""
    return [_part(list(run)) for _, run in itertools.groupby(events, _place)]


def read_arguments(text: str) -> Any:
    """The arguments of a call, for protocols that want an object; the text itself where it holds none."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return read if isinstance(read, dict) else text


def _place(event: AnswerEvent) -> object:
    return type(event) if isinstance(event, (ReasoningDelta, TextDelta)) else event.index


def _part(run: list[AnswerEvent]) -> Part:
    first = run[0]
    if isinstance(first, CallBegun):
        arguments = "".join(each.text for each in run if isinstance(each, (ArgumentsDelta, InputDelta)))
        return CallPart(first.id, first.name, arguments, first.is_custom)
    text = "".join(each.text for each in run if isinstance(each, (ReasoningDelta, TextDelta)))
    return ReasoningPart(text) if isinstance(first, ReasoningDelta) else TextPart(text)
