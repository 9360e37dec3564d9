"""Reads calls into JSON, incrementally: JSON objects with a name and arguments, names before their arguments, and Python's lists of calls.

Nothing is evaluated: of Python only literals are read, which are strings, numbers, True, False, None, lists and dicts.
"""

from __future__ import annotations

import json
from typing import Final

from nanoserve.domain.text.dialects.dialect import NamedCall, XmlArguments
from nanoserve.domain.text.dialects.lenient_json import literal_json
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import END, Reader, Reading, Sink
from nanoserve.domain.text.dialects.xml import read_elements

_LONGEST_KEY: Final = 256
_LONGEST_TEXT: Final = 1 << 24
_BEHIND: Final = " \t\r\n,;]}`"
"""Text between two calls and after the last one, including surplus brackets and fences."""
_NAME_KEYS: Final = frozenset({"name", "function", "tool", "tool_name", "function_name"})
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters", "args", "params", "input", "arguments_json"})


def read_objects(
    reader: Reader, output: Output, closers: tuple[str, ...], *, listed: bool = False, known: bool = False
) -> Reading[bool]:
    """JSON objects that are calls, all but the last ended; returns whether the last one is complete.

    `listed` objects may stand in brackets. `known` takes only objects with the name of a tool and nothing else beside its
    arguments, because any other JSON may be the answer's text. Commas, semicolons or blanks are between them.
    """
    if (yield from reader.skip_fence()) == "[" and listed:
        reader.take()
    while True:
        if not (yield from _Object(reader, output, closers, known=known).read()):
            return False
        if (yield from reader.skip(_BEHIND)) != "{":
            return True
        output.end_call()


class _Object:
    """One JSON object with the name and the arguments of a call. Arguments that come before the name wait for it."""

    def __init__(self, reader: Reader, output: Output, closers: tuple[str, ...], *, known: bool) -> None:
        self._reader, self._output, self._closers, self._known = reader, output, closers, known
        self._has_begun = self._is_inner = self._has_arguments = False
        self._call_id = ""
        self._waiting: list[str] = []

    def read(self) -> Reading[bool]:
        """True if it is a call, and complete, perhaps except its bracket; members of an object `function` count as its own."""
        reader = self._reader
        if (yield from reader.skip()) != "{":
            return False
        reader.take()
        if (yield from reader.skip()) == "{":
            reader.take()
        while (following := (yield from reader.skip())) != "}":
            if following == ",":
                reader.take()
                continue
            key = yield from reader.string(_LONGEST_KEY)
            if key is None or (yield from reader.skip()) != ":":
                return self._has_arguments
            reader.take()
            if (yield from reader.skip()) == "{" and key == "function" and not self._is_inner:
                self._is_inner = True
                is_read = yield from self.read()
            else:
                is_read = yield from self._member(key)
            if not is_read:
                return False
        reader.take()
        return self._has_begun or self._is_inner

    def _member(self, key: str) -> Reading[bool]:
        reader, output = self._reader, self._output
        if key in _NAME_KEYS and not self._has_begun:
            name = yield from reader.string(_LONGEST_KEY)
            if not name or (self._known and name not in output.tools):
                return False
            output.begin_call(name, self._call_id)
            reader.forget()
            self._has_begun = True
            for part in self._waiting:
                output.arguments(part)
            return True
        if key in _ARGUMENT_KEYS:
            sink = output.arguments if self._has_begun else self._waiting.append
            is_read = yield from _arguments(reader, sink, self._closers)
            self._has_arguments = is_read and self._has_begun
            return is_read
        if self._known and key not in {"type", "id"}:
            return False
        value = yield from _other_value(reader, self._closers)
        if key == "id" and value:
            self._call_id = value
        return value is not None


def _arguments(reader: Reader, sink: Sink, closers: tuple[str, ...]) -> Reading[bool]:
    """The arguments within a call's object: an object, which passes, or the text of one."""
    first = yield from reader.peek()
    if first in {"{", "["}:
        return (yield from reader.value(sink, closers))
    value = yield from _other_value(reader, closers)
    if value and value not in {"null", "None"}:
        sink(value)
    return value is not None


def _other_value(reader: Reader, closers: tuple[str, ...]) -> Reading[str | None]:
    """Any value, a string decoded; None if it is wrong."""
    first = yield from reader.peek()
    if first in {'"', "'"}:
        return (yield from reader.string(_LONGEST_TEXT))
    parts: list[str] = []
    if first in {"{", "["}:
        return "".join(parts) if (yield from reader.value(parts.append, closers)) else None
    while len(character := (yield from reader.peek())) == 1 and character not in ",}]":
        parts.append(reader.take())
    return "".join(parts).strip() or None


def read_named(
    form: NamedCall, reader: Reader, output: Output, closers: tuple[str, ...]
) -> Reading[tuple[bool, str]]:
    """Name and arguments; returns whether they are complete, and the mark that ended them, if one did."""
    if form.before:
        _, mark = yield from reader.collect((form.before, *closers), _LONGEST_KEY)
        if mark != form.before:
            return False, mark
    xml = form.arguments if isinstance(form.arguments, XmlArguments) else None
    stops = tuple(filter(None, (form.after, form.id_mark, "" if xml else "{", xml.key_open if xml else "")))
    written, mark = yield from reader.collect((*stops, *closers), _LONGEST_KEY)
    call_id = ""
    if form.id_mark and mark == form.id_mark:
        call_id, mark = yield from reader.collect((form.after, "{", *closers), _LONGEST_KEY)
    if mark == "{":
        reader.put_back(mark)
    name = written.partition("`")[0].strip()
    if form.qualified:
        head, colon, _ = name.rpartition(":")
        call_id, name = name if colon else "", (head if colon else name).removeprefix("functions.")
    if not name or (mark == END and form.after):
        return False, mark
    output.begin_call(name, call_id.strip())
    reader.forget()
    if mark in closers:
        return True, mark
    if xml is not None:
        schema = output.tools[name].parameters if name in output.tools else {}
        return (yield from read_elements(xml, reader, output.arguments, closers, schema=schema, mark=mark))
    if (yield from reader.skip_fence()) == "{":
        return (yield from reader.value(output.arguments, closers)), END
    return False, END


_BEHIND_LIST: Final = " \t\r\n]`"
"""Surplus brackets, and the end of a fence."""
_LONGEST_WORD: Final = 64
_OPENING: Final = frozenset("\"'[{")


def read_pythonic(reader: Reader, output: Output) -> Reading[bool]:
    """The list and its calls; False if it stops being one, with a call open if that happens within its arguments."""
    if (yield from reader.skip()) != "[":
        return False
    reader.take()
    while True:
        yield from reader.skip()
        name = yield from _word(reader, _LONGEST_KEY, ".-")
        if name not in output.tools or (yield from reader.skip()) != "(":
            return False
        reader.take()
        output.begin_call(name)
        reader.forget()
        if not (yield from _keywords(reader, output)):
            return False
        output.end_call()
        following = yield from reader.skip()
        if following not in {",", "]"}:
            return False
        reader.take()
        if following == "]":
            yield from reader.skip(_BEHIND_LIST)
            return True


def _keywords(reader: Reader, output: Output) -> Reading[bool]:
    """Keywords and their values, as members of an object whose names and slips are repaired."""
    output.arguments("{")
    while (following := (yield from reader.skip())) != ")":
        if following == ",":
            reader.take()
            output.arguments(", ")
            continue
        name = yield from _word(reader, _LONGEST_KEY, "")
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
    """Letters, digits, underscores and `others`; empty if more than `limit` of them come."""
    word = ""
    while len(character := (yield from reader.peek())) == 1:
        if not (character.isalnum() or character == "_" or character in others):
            break
        word += reader.take()
        if len(word) > limit:
            return ""
    return word
