"""The text that a custom tool takes, out of the arguments `{"input": "..."}` in which it is written, as they come."""

from __future__ import annotations

import json
from typing import Final

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
