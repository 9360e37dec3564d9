"""Calls as a Python list of calls, `[f(a=1, b="x"), g()]`, to JSON as they come.

Only literals are read: strings, numbers, True, False, None, lists and dicts. Nothing is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from nanoserve.domain.text.dialects.lenient_json import as_json, literal_json
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import Reader, Reading

_BEHIND: Final = " \t\r\n]`"
"""Brackets too many, and the end of a fence."""
_LONGEST_WORD: Final = 64
_LONGEST_NAME: Final = 256
_DEEPEST: Final = 64
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_HEX_LENGTHS: Final = {"x": 2, "u": 4, "U": 8}


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
    opening = "{"
    while (following := (yield from reader.skip())) != ")":
        if following == ",":
            reader.take()
            continue
        name = yield from _word(reader, _LONGEST_NAME, "")
        if not name or (yield from reader.skip()) != "=":
            return False
        reader.take()
        output.arguments(f"{opening}{json.dumps(name)}: ")
        opening = ", "
        if not (yield from _value(reader, output, _DEEPEST)):
            return False
    reader.take()
    output.arguments("}" if opening == ", " else "{}")
    return True


def _value(reader: Reader, output: Output, depth: int) -> Reading[bool]:
    first = yield from reader.skip()
    if first and first in "\"'":
        return (yield from _string(reader, output))
    if first and first in "[{" and depth:
        return (yield from _items(reader, output, depth - 1, is_dict=first == "{"))
    word = yield from _word(reader, _LONGEST_WORD, "+-.")
    known = literal_json(word)
    if known is not None:
        output.arguments(known)
    return known is not None


def _items(reader: Reader, output: Output, depth: int, *, is_dict: bool) -> Reading[bool]:
    close = "}" if is_dict else "]"
    output.arguments(reader.take())
    is_first = True
    while (following := (yield from reader.skip())) != close:
        if following == ",":
            reader.take()
            continue
        if not is_first:
            output.arguments(", ")
        is_first = False
        if is_dict:
            if following not in {'"', "'"} or not (yield from _string(reader, output)):
                return False
            if (yield from reader.skip()) != ":":
                return False
            reader.take()
            output.arguments(": ")
        if not (yield from _value(reader, output, depth)):
            return False
    output.arguments(reader.take())
    return True


def _string(reader: Reader, output: Output) -> Reading[bool]:
    """A Python string in either quote; passed on as it comes."""
    quote = reader.take()
    output.arguments('"')
    while (mark := (yield from reader.until((quote, "\\"), _escaped(output), keep_tokens=True))) == "\\":
        escape = yield from reader.peek()
        if len(escape) != 1:
            return False
        reader.take()
        if escape in _HEX_LENGTHS:
            digits = ""
            for _ in range(_HEX_LENGTHS[escape]):
                if len((yield from reader.peek())) != 1:
                    return False
                digits += reader.take()
            try:
                text = chr(int(digits, 16))
            except (ValueError, OverflowError):
                return False
        else:
            text = _ESCAPES.get(escape, escape if escape in "\"'\\" else "\\" + escape)
        output.arguments(json.dumps(text)[1:-1]) if text else None
    output.arguments('"') if mark else None
    return bool(mark)


def _escaped(output: Output) -> Callable[[str], None]:
    return lambda text: output.arguments(as_json(text)[1:-1])


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
