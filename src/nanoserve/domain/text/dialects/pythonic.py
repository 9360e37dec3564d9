"""Calls as a Python list of calls, `[f(a=1, b="x"), g()]`, to JSON as they come.

Only literals are read: strings, numbers, True, False, None, lists and dicts. Nothing is evaluated.
"""

from __future__ import annotations

import json
from typing import Final

from nanoserve.domain.text.dialects.lenient_json import literal_json
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import Reader, Reading

_BEHIND: Final = " \t\r\n]`"
"""Brackets too many, and the end of a fence."""
_LONGEST_WORD: Final = 64
_LONGEST_NAME: Final = 256
_OPENING: Final = frozenset("\"'[{")


def read_pythonic(reader: Reader, output: Output) -> Reading[bool]:
    """The list and its calls; False where it stops being one, with a call open if that happens within its arguments."""
    if (yield from reader.skip()) != "[":
        return False
    reader.take()
    while True:
        yield from reader.skip()
        name = yield from _word(reader, _LONGEST_NAME, ".-")
        if name not in output.tools or (yield from reader.skip()) != "(":
            return False
        reader.take()
        output.begin_call(name)
        reader.forget()
        if not (yield from _arguments(reader, output)):
            return False
        output.end_call()
        following = yield from reader.skip()
        if following not in {",", "]"}:
            return False
        reader.take()
        if following == "]":
            yield from reader.skip(_BEHIND)
            return True


def _arguments(reader: Reader, output: Output) -> Reading[bool]:
    """Keywords and their values, as members of an object whose names and slips are mended."""
    output.arguments("{")
    while (following := (yield from reader.skip())) != ")":
        if following == ",":
            reader.take()
            output.arguments(", ")
            continue
        name = yield from _word(reader, _LONGEST_NAME, "")
        if not name or (yield from reader.skip()) != "=":
            return False
        reader.take()
        output.arguments(f"{json.dumps(name)}: ")
        if (yield from reader.skip()) in _OPENING:
            if not (yield from reader.value(output.arguments, ())):
                return False
            continue
        word = yield from _word(reader, _LONGEST_WORD, "+-.")
        if literal_json(word) is None:
            return False
        output.arguments(word)
    reader.take()
    output.arguments("}")
    return True


def _word(reader: Reader, limit: int, others: str) -> Reading[str]:
    """Letters, digits, underscores and `others`; empty where more than `limit` of them come."""
    word = ""
    while len(character := (yield from reader.peek())) == 1:
        if not (character.isalnum() or character == "_" or character in others):
            break
        word += reader.take()
        if len(word) > limit:
            return ""
    return word
