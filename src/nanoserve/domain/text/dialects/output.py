"""The events of an answer, as the readers of its parts find them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from nanoserve.domain.text.dialects.dialect import CallIds
from nanoserve.domain.text.dialects.lenient_json import LenientJson
from nanoserve.ports import tool_calls

_HEAD: Final = '{"input":"'
_BLANK_BEFORE: Final = frozenset({0, 1, 8, 9})
"""Places in the head in front of which there may be white space."""
_BLANK: Final = " \t\r\n"


class InputText:
    """One call's arguments on their way; those of any other form pass unchanged."""

    def __init__(self) -> None:
        self._held = ""
        self._num_matched = 0
        self._is_raw = self._has_ended = False

    def push(self, text: str) -> str:
        """More of the arguments; returns what they add to the text."""
        if self._num_matched < len(_HEAD) and not self._is_raw:
            text = self._behind_head(text)
        if self._is_raw or self._has_ended:
            return text if self._is_raw else ""
        return self._string(text) if self._num_matched == len(_HEAD) else ""

    def close(self) -> str:
        """Return the text that was held back of arguments that have ended."""
        held, self._held = self._held, ""
        return held

    def _behind_head(self, text: str) -> str:
        """Return the text behind the head, which is held back; all of it, where it is no such head."""
        for place, character in enumerate(text):
            if self._num_matched == len(_HEAD):
                self._held = ""
                return text[place:]
            if character == _HEAD[self._num_matched]:
                self._num_matched += 1
            elif character not in _BLANK or self._num_matched not in _BLANK_BEFORE:
                self._is_raw = True
                return self.close() + text[place:]
            self._held += character
        if self._num_matched == len(_HEAD):
            self._held = ""
        return ""

    def _string(self, text: str) -> str:
        """The characters of a JSON string, up to its end or to an escape that is cut."""
        text = self.close() + text
        place = 0
        while True:
            quote, escape = text.find('"', place), text.find("\\", place)
            if quote >= 0 and not 0 <= escape < quote:
                self._has_ended = True
                return _decoded(text[:quote])
            if escape < 0:
                return _decoded(text)
            length = _length_of_escape(text[escape:])
            if length == 0:
                self._held = text[escape:]
                return _decoded(text[:escape])
            place = escape + length


def _length_of_escape(text: str) -> int:
    r"""The length of the escape at the beginning of a text, a pair of surrogates being one; 0 where it is cut."""
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
        """More reasoning, likewise."""
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
        """More of the arguments of the call that began last, as the model wrote them: slips are mended."""
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
        if self._ids is CallIds.NINE:
            return digest[:9]
        return (
            f"functions.{name}:{self.num_calls}" if self._ids is CallIds.QUALIFIED else f"call_{digest[:24]}"
        )
