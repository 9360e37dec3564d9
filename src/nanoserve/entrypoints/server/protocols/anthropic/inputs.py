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
_TOKEN: Final = re.compile(
    r'[ \t\n\r]+|[{}\[\],:"]'
    r"|(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?=[ \t\n\r,\]}])"
)
_PART_OF_WORD: Final = re.compile(r"[-+.\w]+")
_TEXT: Final = re.compile(
    r'(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))++"
)
_PART_OF_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f]")


def read_input(text: str) -> dict[str, Any]:
    """The object of a whole text."""
    reader = InputText()
    found: dict[str, Any] = json.loads(reader.push(text) + reader.close() or "{}")
    return found


class InputText:
    """A call's input while it is written: all that `push` and `close` return is the text of one object, or nothing."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._rest = ""
        self._ends: list[str] = []
        self._expected = "v"  # of v: a value, k: a key, e: the end of an object or a list, and the separators
        self._held = ""  # a separator, a key and its colon: sent with the value that they are for
        self._in_text = self._is_key = self._has_members = self._is_whole = self._is_broken = False

    def push(self, text: str) -> str:
        """What may be sent of what was written so far; the rest is kept."""
        self._written.append(text)
        self._rest += text
        sent = []
        while self._rest and not (self._is_whole or self._is_broken):
            read = self._read_text() if self._in_text else self._read_token()
            if read is None:
                break
            sent.append(read)
        return "".join(sent)

    def close(self) -> str:
        """What makes an object of what was sent; nothing where it is one, and where nothing was written."""
        written = "".join(self._written)
        if self._is_whole or not written.strip():
            return ""
        told = f"{json.dumps(INVALID)}:{json.dumps(written, ensure_ascii=False)}}}"
        if not self._ends:
            return "{" + told
        quote = '"' if self._in_text and not self._is_key else ""
        return quote + "".join(reversed(self._ends[1:])) + ("," if self._has_members else "") + told

    def _read_text(self) -> str | None:
        """More of a text or its end; None where more must be written first, or nothing helps."""
        if self._rest[0] == '"':
            self._rest, self._in_text = self._rest[1:], False
            self._expected = ":" if self._is_key else ",e"
            return self._unless_key('"')
        found = _TEXT.match(self._rest)
        if found is None:
            self._is_broken = _PART_OF_ESCAPE.fullmatch(self._rest) is None
            return None
        self._rest = self._rest[found.end() :]
        return self._unless_key(_CONTROL.sub(lambda each: f"\\u{ord(each[0]):04x}", found[0]))

    def _unless_key(self, text: str) -> str:
        if not self._is_key:
            return text
        self._held += text
        return ""

    def _read_token(self) -> str | None:
        """The next token with what was held for it; None as for texts."""
        found = _TOKEN.match(self._rest)
        part = "" if found is None else found[0].strip()
        if found is None or not self._is_expected(part):
            self._is_broken = found is not None or _PART_OF_WORD.fullmatch(self._rest) is None
            return None
        self._rest = self._rest[found.end() :]
        if part in ("", ",", ":"):
            self._held += part
            if part:
                self._expected = "k" if part == "," and self._ends[-1] == "}" else "v"
            return ""
        self._has_members |= len(self._ends) == 1 and "v" in self._expected
        self._go_on(part)
        if self._in_text and self._is_key:
            return self._unless_key(part)
        held, self._held = self._held, ""
        return held + part

    def _is_expected(self, part: str) -> bool:
        if not self._ends:
            return part in ("", "{")
        match part[:1]:
            case "" | "," | ":":
                return part in self._expected
            case '"':
                return "v" in self._expected or "k" in self._expected
            case "}" | "]":
                return "e" in self._expected and self._ends[-1] == part
        return "v" in self._expected and len(self._ends) < _DEEPEST

    def _go_on(self, part: str) -> None:
        match part:
            case '"':
                self._in_text, self._is_key = True, "k" in self._expected
            case "{":
                self._ends.append("}")
                self._expected = "ke"
            case "[":
                self._ends.append("]")
                self._expected = "ve"
            case "}" | "]":
                self._ends.pop()
                self._expected, self._is_whole = ",e", not self._ends
            case _:
                self._expected = ",e"
