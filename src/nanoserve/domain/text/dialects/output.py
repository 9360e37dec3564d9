"""The events of an answer, in the order in which they are read."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Final, Literal

from nanoserve.domain.text.dialects.dialect import CallIds
from nanoserve.domain.text.dialects.lenient_json import LenientJson
from nanoserve.ports import tool_calls

_WHITE: Final = r"[ \t\r\n]*"
_HEAD_PARTS: Final = (_WHITE, r"\{", _WHITE, *'"input"', _WHITE, ":", _WHITE, '"')
_HEAD: Final = re.compile("".join(_HEAD_PARTS))
_MAYBE_HEAD: Final = re.compile(
    functools.reduce(lambda rest, part: f"(?:{part}{rest})?", _HEAD_PARTS[::-1], "")
)
"""Texts that may become a head."""


class InputText:
    """One call's growing arguments, as the text in their only member; arguments of any other form pass unchanged."""

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["head", "string", "raw", "ended"] = "head"

    def push(self, text: str) -> str:
        """More of the arguments; returns what they add to the text."""
        text = self.close() + text
        if self._state == "head":
            if head := _HEAD.match(text):
                self._state, text = "string", text[head.end() :]
            elif _MAYBE_HEAD.fullmatch(text):
                self._held = text
            else:
                self._state = "raw"
        if self._state == "string":
            return self._string(text)
        return text if self._state == "raw" else ""

    def close(self) -> str:
        """Return the text that was held back of arguments that have ended."""
        held, self._held = self._held, ""
        return held

    def _string(self, text: str) -> str:
        """The characters of a JSON string, up to its end or to an escape that is cut."""
        place = 0
        while True:
            quote, escape = text.find('"', place), text.find("\\", place)
            if quote >= 0 and not 0 <= escape < quote:
                self._state = "ended"
                return _decoded(text[:quote])
            if escape < 0:
                return _decoded(text)
            length = _length_of_escape(text[escape:])
            if length == 0:
                self._held = text[escape:]
                return _decoded(text[:escape])
            place = escape + length


def _length_of_escape(text: str) -> int:
    r"""The length of the escape at the beginning of a text, a pair of surrogates being one; 0 if it is cut."""
    if not text.startswith("\\u"):
        return 2 if len(text) > 1 else 0
    is_high = text[2:3] in {"d", "D"} and text[3:4] in set("89abAB")
    if is_high and (len(text) < 8 or text[6:8] == "\\u"):
        return 12 if len(text) >= 12 or text[6:7] not in {"", "\\"} else 0
    return 6 if len(text) >= 6 else 0


def _decoded(text: str) -> str:
    """The text of a part of a JSON string; half a pair of surrogates becomes the replacement character."""
    try:
        found: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Output:
    """Collects events until they are asked for.

    Attributes:
        tools: those that may be called, by name.
        num_calls: that have begun.
        reasons: whether a region of reasoning is open.
    """

    def __init__(self, tools: Sequence[tool_calls.Tool], ids: CallIds, id_seed: str) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.num_calls = 0
        self._ids, self._id_seed = ids, id_seed
        self._events: list[tool_calls.AnswerEvent] = []
        self._skips_blank = False
        self._has_arguments = self._has_text = False
        self._gap = ""
        self._arguments: InputText | LenientJson | None = None
        self.reasons = False

    @property
    def is_open(self) -> bool:
        """True while the call that began last has not ended."""
        return self._arguments is not None

    def pop(self) -> list[tool_calls.AnswerEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def text(self, text: str) -> None:
        """More text; white space behind a mark is left out."""
        if text := self._shown(text):
            self._has_text = True
            self._events.append(tool_calls.TextDelta(self._gap + text))
            self._gap = ""

    def reasoning(self, text: str) -> None:
        """More reasoning, without white space after a mark."""
        if text := self._shown(text):
            self._events.append(tool_calls.ReasoningDelta(text))

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
        self._events.append(tool_calls.CallBegun(self.num_calls, call_id, name, is_custom))
        self.num_calls += 1
        self._has_arguments = self._has_text = False
        self._gap = ""

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last, as the model wrote them: slips are repaired."""
        if self._arguments is not None:
            self._add_arguments(self._arguments.push(text))

    def _add_arguments(self, text: str) -> None:
        if not text:
            return
        self._has_arguments = True
        kind = tool_calls.InputDelta if isinstance(self._arguments, InputText) else tool_calls.ArgumentsDelta
        self._events.append(kind(self.num_calls - 1, text))

    def end_call(self) -> None:
        """The call that is open ends, if one is: what is open in its arguments is closed; without any it gets an empty object."""
        if self._arguments is None:
            return
        self._add_arguments(self._arguments.close())
        if not self._has_arguments and isinstance(self._arguments, LenientJson):
            self._add_arguments("{}")
        self._arguments = None
        self._events.append(tool_calls.CallEnded(self.num_calls - 1))
        self.mark()

    def _shown(self, text: str) -> str:
        if self._skips_blank and (text := text.lstrip()):
            self._skips_blank = False
        return text

    def _new_id(self, name: str) -> str:
        digest = hashlib.sha256(f"{self._id_seed}:{self.num_calls}".encode()).hexdigest()
        if self._ids == "nine":
            return digest[:9]
        return f"functions.{name}:{self.num_calls}" if self._ids == "qualified" else f"call_{digest[:24]}"
