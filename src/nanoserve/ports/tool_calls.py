"""The tools of a request, and the parts of an answer: reasoning, text and calls.

A part comes piece by piece, as events. The events of an answer, in order, are the answer: reasoning and text alternate
freely, and a call is one `CallBegun`, any number of `ArgumentsDelta`, or of `InputDelta` for a custom tool, and one
`CallEnded`, with nothing between them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.ports.grammar import Constraint


@attrs.frozen(kw_only=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: the JSON schema of its arguments, which are an object.
        strict: whether its arguments are made to fit the schema even where calls are free.
        is_custom: whether it takes one text; for the model that is the argument `input` of a function.
        form: what that text must be, a regular expression or Lark; None for any.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False
    is_custom: bool = False
    form: Constraint | None = None

    @classmethod
    def custom(cls, name: str, description: str, form: Constraint | None) -> Tool:
        """One that takes a text. The model reads the form, too, and is made to keep it."""
        text = {"type": "string"}
        if form is not None:
            text["description"] = f"text of this {form.kind}:\n{form.text}"
        return cls(
            name=name,
            description=description,
            parameters={
                "type": "object",
                "properties": {"input": text},
                "required": ["input"],
                "additionalProperties": False,
            },
            strict=form is not None,
            is_custom=True,
            form=form,
        )

    def as_message(self) -> dict[str, Any]:
        """The form that chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class CallMode(enum.Enum):
    """The choice between answers with and without calls: none, free, at least one."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@attrs.frozen
class ToolChoice:
    """A request's settings of tool calls.

    Attributes:
        names: the tools that may be called; empty for all. One name with `REQUIRED` is a named tool.
        parallel: whether one answer may have several calls.
    """

    mode: CallMode = CallMode.AUTO
    names: tuple[str, ...] = ()
    parallel: bool = True

    def allowed(self, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """Those of the tools that may be called, in their order."""
        if self.mode is CallMode.NONE:
            return ()
        return tuple(tool for tool in tools if not self.names or tool.name in self.names)


@attrs.frozen
class ReasoningDelta:
    """More of the model's reasoning."""

    text: str


@attrs.frozen
class TextDelta:
    """More of the answer's text."""

    text: str


@attrs.frozen
class CallBegun:
    """A call begins; `index` counts the answer's calls from 0, `id` has the shape that the model's template takes.

    `is_custom` where the tool is, which takes a text and no arguments.
    """

    index: int
    id: str
    name: str
    is_custom: bool = False


@attrs.frozen
class ArgumentsDelta:
    """More of the call's arguments: joined they are the text of a JSON object, unless the model wrote something else."""

    index: int
    text: str


@attrs.frozen
class InputDelta:
    """More of the text for a custom tool."""

    index: int
    text: str


@attrs.frozen
class CallEnded:
    """The call's arguments are complete, or the answer ended within them."""

    index: int


AnswerEvent = ReasoningDelta | TextDelta | CallBegun | ArgumentsDelta | InputDelta | CallEnded
