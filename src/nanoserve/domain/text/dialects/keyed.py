"""Reads calls that are JSON objects with a name and arguments, one or a list of them."""

from __future__ import annotations

from typing import Final

from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import Reader, Reading, Sink

_LONGEST_KEY: Final = 256
_LONGEST_TEXT: Final = 1 << 24
_BEHIND: Final = " \t\r\n,;]}`"
"""Between two calls and behind the last one, brackets and fences too many among it."""
_NAME_KEYS: Final = frozenset({"name", "function", "tool", "tool_name", "function_name"})
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters", "args", "params", "input", "arguments_json"})


def read_objects(
    reader: Reader, output: Output, closers: tuple[str, ...], *, listed: bool = False, known: bool = False
) -> Reading[bool]:
    """JSON objects that are calls, all but the last ended; whether the last one is whole.

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
        """True if it is a call, and whole, maybe but for its bracket; members of an object `function` count as its own."""
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
    """Any value, a string decoded; None where it is wrong."""
    first = yield from reader.peek()
    if first in {'"', "'"}:
        return (yield from reader.string(_LONGEST_TEXT))
    parts: list[str] = []
    if first in {"{", "["}:
        return "".join(parts) if (yield from reader.value(parts.append, closers)) else None
    while len(character := (yield from reader.peek())) == 1 and character not in ",}]":
        parts.append(reader.take())
    return "".join(parts).strip() or None
