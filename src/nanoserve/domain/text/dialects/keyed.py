"""Reads calls that are JSON objects with a name and arguments, one or a list of them."""

from __future__ import annotations

from typing import Final

from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import Reader, Reading, Sink

_LONGEST_KEY: Final = 256
_LONGEST_TEXT: Final = 1 << 24
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})


def read_objects(
    reader: Reader, output: Output, closers: tuple[str, ...], *, listed: bool = False, known: bool = False
) -> Reading[bool]:
    """JSON objects that are calls, all but the last ended; whether the last one is whole.

    `listed` objects may stand in brackets. `known` takes only objects with the name of a tool and nothing else beside its
    arguments, because any other JSON may be the answer's text.
    """
    if listed and (yield from reader.skip()) == "[":
        reader.take()
    while True:
        if not (yield from _object(reader, output, closers, known=known)):
            return False
        if (yield from reader.skip()) not in {",", ";"}:
            break
        reader.take()
        if (yield from reader.skip()) != "{":
            break
        output.end_call()
    if listed and (yield from reader.skip()) == "]":
        reader.take()
    return True


def _object(reader: Reader, output: Output, closers: tuple[str, ...], *, known: bool) -> Reading[bool]:
    """One JSON object with the name and the arguments of a call; whether it is whole.

    Arguments that come before the name wait for it.
    """
    if (yield from reader.skip()) != "{":
        return False
    reader.take()
    has_begun, call_id = False, ""
    waiting: list[str] = []
    while (following := (yield from reader.skip())) != "}":
        if following == ",":
            reader.take()
            continue
        key = yield from reader.string(_LONGEST_KEY)
        if key is None or (yield from reader.skip()) != ":":
            return False
        reader.take()
        yield from reader.skip()
        if key == "name":
            name = yield from reader.string(_LONGEST_KEY)
            if not name or has_begun or (known and name not in output.tools):
                return False
            output.begin_call(name, call_id)
            reader.forget()
            has_begun = True
            for part in waiting:
                output.arguments(part)
        elif key in _ARGUMENT_KEYS:
            if not (
                yield from _arguments(reader, output.arguments if has_begun else waiting.append, closers)
            ):
                return False
        elif (known and key != "type") or (value := (yield from _other_value(reader, closers))) is None:
            return False
        elif key == "id":
            call_id = value
    reader.take()
    return has_begun


def _arguments(reader: Reader, sink: Sink, closers: tuple[str, ...]) -> Reading[bool]:
    """The arguments within a call's object: an object, which passes, or the text of one."""
    first = yield from reader.peek()
    if first in {"{", "["}:
        return (yield from reader.value(sink, closers))
    value = yield from _other_value(reader, closers)
    if value and value != "null":
        sink(value)
    return value is not None


def _other_value(reader: Reader, closers: tuple[str, ...]) -> Reading[str | None]:
    """Any value, a string decoded; None where it is wrong."""
    first = yield from reader.peek()
    if first == '"':
        return (yield from reader.string(_LONGEST_TEXT))
    parts: list[str] = []
    if first in {"{", "["}:
        return "".join(parts) if (yield from reader.value(parts.append, closers)) else None
    while len(character := (yield from reader.peek())) == 1 and character not in ",}]":
        parts.append(reader.take())
    return "".join(parts).strip() or None
