"""The events of an answer, as the readers of its parts find them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from nanoserve.domain.text.dialects.dialect import CallIds
from nanoserve.domain.text.dialects.input_text import InputText
from nanoserve.domain.text.dialects.lenient_json import LenientJson
from nanoserve.ports.tool_calls import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    InputDelta,
    ReasoningDelta,
    TextDelta,
    Tool,
)


class Output:
    """Collects events until they are asked for.

    Attributes:
        tools: those that may be called, by name.
        num_calls: that have begun.
        reasons: whether a region of reasoning is open.
    """

    def __init__(self, tools: Sequence[Tool], ids: CallIds, id_seed: str) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.num_calls = 0
        self._ids, self._id_seed = ids, id_seed
        self._events: list[AnswerEvent] = []
        self._skips_blank = False
        self._has_arguments = self._has_text = False
        self._gap = ""
        self._arguments: InputText | LenientJson | None = None
        self.reasons = False

    @property
    def is_open(self) -> bool:
        """True while the call that began last has not ended."""
        return self._arguments is not None

    def pop(self) -> list[AnswerEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def text(self, text: str) -> None:
        """More text; white space behind a mark is left out."""
        if text := self._shown(text):
            self._has_text = True
            self._events.append(TextDelta(self._gap + text))
            self._gap = ""

    def reasoning(self, text: str) -> None:
        """More reasoning, likewise."""
        if text := self._shown(text):
            self._events.append(ReasoningDelta(text))

    def mark(self, *, parts: bool = False) -> None:
        """A mark was read; where it `parts` texts that follow each other, an empty line takes its place."""
        self._skips_blank = True
        if parts and self._has_text:
            self._gap = "\n\n"

    def begin_call(self, name: str, call_id: str = "") -> None:
        """A call of the function; without an id it gets one in the family's shape."""
        call_id = call_id or self._new_id(name)
        is_custom = name in self.tools and self.tools[name].is_custom
        self._arguments = InputText() if is_custom else LenientJson()
        self._events.append(CallBegun(self.num_calls, call_id, name, is_custom))
        self.num_calls += 1
        self._has_arguments = self._has_text = False
        self._gap = ""

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last, as the model wrote them: slips are mended."""
        if self._arguments is not None:
            self._add_arguments(self._arguments.push(text))

    def _add_arguments(self, text: str) -> None:
        if not text:
            return
        self._has_arguments = True
        kind = InputDelta if isinstance(self._arguments, InputText) else ArgumentsDelta
        self._events.append(kind(self.num_calls - 1, text))

    def end_call(self) -> None:
        """The call that is open ends, if one is: what is open in its arguments is closed; without any it gets an empty object."""
        if self._arguments is None:
            return
        self._add_arguments(self._arguments.close())
        if not self._has_arguments and isinstance(self._arguments, LenientJson):
            self._add_arguments("{}")
        self._arguments = None
        self._events.append(CallEnded(self.num_calls - 1))
        self.mark()

    def _shown(self, text: str) -> str:
        if self._skips_blank and (text := text.lstrip()):
            self._skips_blank = False
        return text

    def _new_id(self, name: str) -> str:
        digest = hashlib.sha256(f"{self._id_seed}:{self.num_calls}".encode()).hexdigest()
        if self._ids is CallIds.NINE:
            return digest[:9]
        return (
            f"functions.{name}:{self.num_calls}" if self._ids is CallIds.QUALIFIED else f"call_{digest[:24]}"
        )
