"""Turns a model's arguments into JSON, incrementally: JSON passes unchanged, errors are repaired, open parts are closed.

The errors are those that parsers of other servers accept: quotes, constants and numbers as Python writes them, names without
quotes, commas and brackets too many or too few, line breaks within strings.
"""

from __future__ import annotations

import enum
import json
import math
import re
from typing import Final

as_json: Final = json.JSONEncoder(ensure_ascii=False).encode
"""A value as JSON, its letters as they are. `json.dumps` would make an encoder for each piece of an answer."""
_CLOSING: Final = {"{": "}", "[": "]"}
_CONSTANTS: Final = {
    **dict.fromkeys(("true", "True"), "true"),
    **dict.fromkeys(("false", "False"), "false"),
    **dict.fromkeys(("null", "None", "NaN", "nan", "inf", "Infinity", "undefined"), "null"),
}
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "\"'"}
_WORD: Final = re.compile(r"[^,:{}\[\]\"'\n]+")
_BLANK: Final = re.compile(r"[ \t\r\n]+")
_ESCAPE: Final = re.compile(
    r'\\(?:["\\/bfnrt]|u(?i:(?!d[89a-f])[0-9a-f]{4}|d[89ab][0-9a-f]{2}\\(?-i:u)d[c-f][0-9a-f]{2}))'
)
_PYTHON_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|U(00(?:0[1-9a-fA-F]|10)[0-9a-fA-F]{4}))")
_OPEN_ESCAPE: Final = re.compile(
    r"\\(?:u(?i:[0-9a-f]{0,3}|d[89ab][0-9a-f]{2}(?:\\((?-i:u)[0-9a-f]{0,3})?)?)|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z"
)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LOOSE_NUMBER: Final = re.compile(r"([+-]?)0*([0-9_]*)(?:\.([0-9_]*))?((?:[eE][+-]?[0-9]+)?)")
_CUT_NUMBER: Final = re.compile(r"[-+]?[0-9]*[.eE+-]+")
_STRUCTURE: Final = frozenset(",:{}[]\"'\n")
_OTHER_ESCAPES: Final = {"'": "'", "\n": "\\n", "0": "\\u0000"}


class _Next(enum.Enum):
    """The kinds of what may come next."""

    START = enum.auto()
    NAME = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    MORE = enum.auto()
    """A comma or a closing bracket."""
    NOTHING = enum.auto()
    RAW = enum.auto()


_HELD: Final = frozenset({_Next.NAME, _Next.COLON, _Next.VALUE})
"""The state in which blanks wait for the next character."""


def literal_json(word: str) -> str | None:
    """The JSON of a constant or a number in JSON or Python; null for a number that JSON cannot hold, None for any other word."""
    sign = word[1:] if word[:1] in {"+", "-"} else word
    if (constant := _CONSTANTS.get(sign)) is not None and (sign == word or constant == "null"):
        return constant
    if not _NUMBER.fullmatch(word):
        loose = _LOOSE_NUMBER.fullmatch(word)
        if loose is None or not any(character.isdecimal() for character in word):
            return None
        minus, whole, fraction, exponent = loose.groups(default="")
        whole, fraction = (part.replace("_", "") for part in (whole, fraction))
        point = f".{fraction or 0}" if "." in word else ""
        word = f"{minus.strip('+')}{whole or 0}{point}{exponent}"
    is_finite = {"e", "E"}.isdisjoint(word) or math.isfinite(float(word))
    return word if is_finite else "null"


class LenientJson:
    """One object or array on its way to JSON. A text that begins as neither passes as it is.

    A member's name is given out with its value, so that an answer that ends between them leaves no half of a member.
    """

    def __init__(self) -> None:
        self._unread = self._quote = ""
        self._name: list[str] | None = None
        self._word, self._pending, self._out, self._open = list[str](), list[str](), list[str](), list[str]()
        self._num_open = {"}": 0, "]": 0}
        self._expects = _Next.START

    @classmethod
    def whole(cls, text: str) -> str:
        """The JSON of a complete text."""
        lenient = cls()
        return lenient.push(text) + lenient.close()

    def push(self, text: str) -> str:
        """Add text; returns the JSON that is certain by now."""
        if self._expects is _Next.RAW:
            return text
        text, place, self._unread = self._unread + text, 0, ""
        while place < len(text) and self._expects is not _Next.NOTHING:
            if not self._quote:
                place = self._outside(text, place)
            elif _OPEN_ESCAPE.match(text, place):
                self._unread = text[place:]
                break
            else:
                place = self._in_string(text, place)
        return self._taken()

    def close(self) -> str:
        """End the text: returns the rest, with everything open closed."""
        if self._quote and self._name is None:
            self._out.append('"')
        elif self._word and self._expects is _Next.VALUE:
            self._end_word(_completed("".join(self._word)))
        self._out += reversed(self._open)
        self._open, self._quote, self._expects = [], "", _Next.NOTHING
        return self._taken()

    def _taken(self) -> str:
        taken, self._out = "".join(self._out), []
        return taken

    def _in_string(self, text: str, place: int) -> int:
        """Where the next part of a string ends."""
        sink = self._out if self._name is None else self._name
        if plain := _PLAIN[self._quote].match(text, place):
            sink.append(plain[0].replace('"', '\\"'))
            return plain.end()
        if text[place] == self._quote:
            self._end_string()
        elif text[place] != "\\":
            sink.append(as_json(text[place])[1:-1])
        elif escape := _ESCAPE.match(text, place):
            sink.append(escape[0])
            return escape.end()
        elif self._quote == "'" and (escape := _PYTHON_ESCAPE.match(text, place)):
            sink.append(json.dumps(chr(int(escape[1] or escape[2], 16)))[1:-1])
            return escape.end()
        elif (escaped := _OTHER_ESCAPES.get(text[place + 1])) is not None:
            sink.append(escaped)
            return place + 2
        else:
            sink.append("\\\\")
        return place + 1

    def _end_string(self) -> None:
        self._quote = ""
        if self._name is None:
            self._out.append('"')
            self._expects = _Next.MORE
        else:
            self._named("".join(self._name))

    def _named(self, name: str) -> None:
        self._pending.append(f'"{name}"')
        self._name, self._expects = None, _Next.COLON

    def _outside(self, text: str, place: int) -> int:
        """Where the next part outside of strings ends."""
        character = text[place]
        if self._word and character in _STRUCTURE:
            self._end_word("".join(self._word))
        if not self._word and (blank := _BLANK.match(text, place)):
            (self._pending if self._expects in _HELD else self._out).append(blank[0])
            return blank.end()
        if self._expects is _Next.START and character not in _CLOSING:
            self._expects = _Next.RAW
            self._out.append(text[place:])
            return len(text)
        if character in "\"'":
            self._begin_string(character)
        elif character in _CLOSING:
            self._open_bracket(character)
        elif character in "}]":
            self._close_bracket(character)
        elif character == ",":
            self._comma()
        elif character == ":":
            self._colon()
        else:
            word = _WORD.match(text, place)
            assert word is not None
            self._word.append(word[0])
            return word.end()
        return place + 1

    def _begin_string(self, quote: str) -> None:
        self._separate()
        self._quote = quote
        if self._expects is _Next.NAME:
            self._name = []
        else:
            self._give('"')

    def _end_word(self, word: str) -> None:
        """Drop a word in a place that allows none."""
        self._word = []
        if self._expects is _Next.MORE:
            return
        bare = word.rstrip()
        self._separate()
        if self._expects is _Next.NAME:
            self._named(as_json(bare)[1:-1])
        elif bare:
            self._give(literal_json(bare) or as_json(bare))
            self._out.append(word[len(bare) :])
            self._expects = _Next.MORE

    def _separate(self) -> None:
        """A string, a word or a bracket comes: put in the comma or the colon that is missing before it."""
        if self._expects is _Next.MORE:
            self._comma()
            self._pending.append(" ")
        elif self._expects is _Next.COLON:
            self._colon()

    def _give(self, text: str) -> None:
        self._out += [*self._pending, text]
        self._pending = []

    def _comma(self) -> None:
        """Also a surplus one, and one after a name without a value, which is dropped."""
        if self._expects is _Next.MORE:
            self._pending = [","]
        elif self._open and self._open[-1] == "}":
            self._pending = self._pending[:1] if self._pending[:1] == [","] else []
        self._expects = self._first()

    def _first(self) -> _Next:
        return _Next.NAME if self._open[-1] == "}" else _Next.VALUE

    def _colon(self) -> None:
        if self._expects is _Next.COLON:
            self._pending.append(":")
            self._expects = _Next.VALUE

    def _open_bracket(self, bracket: str) -> None:
        self._separate()
        if self._expects is _Next.NAME:
            return
        self._give(bracket)
        self._open.append(_CLOSING[bracket])
        self._num_open[_CLOSING[bracket]] += 1
        self._expects = self._first()

    def _close_bracket(self, bracket: str) -> None:
        """Also of a bracket around it that was not closed; one that nothing has opened is dropped."""
        if not self._num_open[bracket]:
            return
        if not "".join(self._pending).strip():
            self._out += self._pending
        self._pending = []
        closed = ""
        while closed != bracket:
            closed = self._open.pop()
            self._num_open[closed] -= 1
            self._out.append(closed)
        self._expects = _Next.MORE if self._open else _Next.NOTHING


def _completed(word: str) -> str:
    """A constant or a number whose end did not come, as far as it goes."""
    bare = word.rstrip()
    constant = next((each for each in ("true", "false", "null") if each.startswith(bare.lower())), None)
    return constant or bare if not _CUT_NUMBER.fullmatch(bare) else bare.rstrip(".eE+-")
