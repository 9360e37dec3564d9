"""The input of a call, which is a JSON object whatever the model writes, streamed and whole alike.

What is valid is passed on as it comes, without blanks between its parts. A text that breaks off or is no JSON is closed behind
its valid beginning, and the object gets one member more, `INVALID_JSON`, with all that the model wrote: the name under which
Anthropic's guide to streamed inputs hands such a text back to a model.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

INVALID: Final = "INVALID_JSON"
_DEEPEST: Final = 100
_TEXT: Final = (
    r'((?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))++)"
)
_KEY: Final = rf'("){_TEXT}?(")[ \t\n\r]*(:)'
_VALUE: Final = r'([{\["]|(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?=[ \t\n\r,\]}]))'
_NEXT: Final = {
    state: re.compile(rf"[ \t\n\r]*(?:{follows})")
    for state, follows in {
        "start": r"(\{)",
        "{": rf"{_KEY}|(\}})",
        "[": rf"{_VALUE}|(\])",
        ",}": _KEY,
        ",]": _VALUE,
        ":": _VALUE,
        "}": r"([,}])",
        "]": r"([,\]])",
    }.items()
} | {'"': re.compile(rf'{_TEXT}|(")'), "end": re.compile(r"(?!)")}
"""What may follow, by what is open: behind a bracket, a comma or a colon, and in a text; `}` and `]` wait for a comma or themselves."""
_CLOSING: Final = {"{": "}", "[": "]"}
_CONTROL: Final = re.compile(r"[\x00-\x1f]")


def read_input(text: str) -> dict[str, Any]:
    """The object of a whole text."""
    reader = InputJson()
    found: dict[str, Any] = json.loads(reader.push(text) + reader.close() or "{}")
    return found


class InputJson:
    """A call's input while it is written: all that `push` and `close` return is the text of one object, or nothing."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._rest = ""
        self._ends: list[str] = []
        self._state = "start"
        self._held = ""  # a comma, a key and its colon: sent with the value that they are for
        self._has_members = False

    def push(self, text: str) -> str:
        """What may be sent of what was written so far; the rest is kept."""
        self._written.append(text)
        text, place, sent = self._rest + text, 0, []
        while found := _NEXT[self._state].match(text, place):
            part = "".join(filter(None, found.groups()))
            before = self._state
            if len(self._ends) == _DEEPEST and part in _CLOSING and before != '"':
                break
            place = found.end()
            self._state = self._following(part)
            self._held += _CONTROL.sub(lambda each: f"\\u{ord(each[0]):04x}", part)
            if self._state[0] not in ",:":
                self._has_members |= before != "start"
                sent.append(self._held)
                self._held = ""
        self._rest = text[place:]
        return "".join(sent)

    def close(self) -> str:
        """What makes an object of what was sent; nothing where it is one, and where nothing was written."""
        written = "".join(self._written)
        if self._state == "end" or not written.strip():
            return ""
        told = f"{json.dumps(INVALID)}:{json.dumps(written, ensure_ascii=False)}}}"
        if not self._ends:
            return "{" + told
        quote = '"' if self._state == '"' else ""
        return quote + "".join(reversed(self._ends[1:])) + ("," if self._has_members else "") + told

    def _following(self, part: str) -> str:
        """What is open behind a part; brackets are counted."""
        if self._state == '"' and part != '"':
            return '"'
        if part in _CLOSING:
            self._ends.append(_CLOSING[part])
            return part
        if part == ",":
            return part + self._state
        if part[0] == '"' and self._state != '"':
            return ":" if len(part) > 1 else '"'
        if part in ("}", "]"):
            self._ends.pop()
        return self._ends[-1] if self._ends else "end"
