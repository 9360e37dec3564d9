"""Turns arguments in XML elements into JSON, incrementally, typed by the tool's schema.

A value that may only be a string is escaped and passed on at once. Any other value waits for its end, because only then is
it known whether it is what the schema says; where it is not, it becomes a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.domain.text.dialects.dialect import XmlArguments
from nanoserve.domain.text.dialects.lenient_json import LenientJson, as_json, literal_json
from nanoserve.domain.text.dialects.reader import END, Reader, Reading, Sink, drop
from nanoserve.domain.text.dialects.schema import types_of_argument

_LONGEST_KEY: Final = 256
_NULLS: Final = ("null", "None")
_TRUTHS: Final = {"true": "true", "1": "true", "false": "false", "0": "false"}
_STRING: Final = frozenset({"string"})


def read_elements(
    form: XmlArguments,
    reader: Reader,
    sink: Sink,
    closers: tuple[str, ...],
    *,
    schema: Mapping[str, Any],
    mark: str,
) -> Reading[tuple[bool, str]]:
    """Elements up to one of the `closers`; whether that was reached, and which it is.

    `schema` is that of all arguments; `mark` is what has been read last, maybe the first element's `key_open`.
    """
    opening = "{"
    while mark not in closers:
        if mark != form.key_open:
            mark = yield from reader.until((form.key_open, *closers), drop)
        if mark == END:
            return False, END
        if mark != form.key_open:
            continue
        key, mark = yield from reader.collect((form.key_close, *closers), _LONGEST_KEY)
        if mark == form.key_close and form.value_open:
            mark = yield from reader.until((form.value_open, *closers), drop)
        if mark != (form.value_open or form.key_close):
            return False, mark
        sink(f"{opening}{as_json(key.strip())}: ")
        opening = ", "
        mark = yield from _value(form, reader, sink, closers, types_of_argument(schema, key.strip()))
    sink("}" if opening == ", " else "{}")
    return True, mark


def _value(
    form: XmlArguments, reader: Reader, sink: Sink, closers: tuple[str, ...], types: frozenset[str]
) -> Reading[str]:
    """One value up to its end; returns the mark that ends it.

    Where its own is missing, the next element or the end of the call ends it, as a control token or at the beginning of a line.
    """
    if form.pad and (yield from reader.peek()) == form.pad:
        reader.take()
    following = [form.key_open, *closers]
    tokens = [
        mark for mark in following if mark in reader.tokens or (form.value_open and mark == form.key_open)
    ]
    lines = {f"\n{mark}": mark for mark in following if form.between and mark not in tokens}
    typed = _TypedValue(sink, types)
    ends = (form.value_close, *tokens, *lines)
    mark = yield from reader.until(ends, typed.add, keep_tokens=True, trims=len(form.pad))
    typed.end(is_whole=mark != END)
    return lines.get(mark, mark)


class _TypedValue:
    """Turns the text of a value into JSON: a string at once, other values at the end."""

    def __init__(self, sink: Sink, types: frozenset[str]) -> None:
        self._sink, self._types = sink, types
        self._waiting: list[str] = []
        self._is_string = types == _STRING
        if self._is_string:
            sink('"')

    def add(self, text: str) -> None:
        if not self._is_string:
            self._waiting.append(text)
            if self._types <= {"string", "null"} and not self._may_be_null():
                text = "".join(self._waiting)
                self._is_string = True
                self._sink('"')
        if self._is_string:
            self._sink(as_json(text)[1:-1])

    def end(self, *, is_whole: bool) -> None:
        written = "".join(self._waiting)
        if self._is_string:
            self._sink('"')
        elif is_whole or written.strip():
            self._sink(typed_json(written, self._types))

    def _may_be_null(self) -> bool:
        text = "".join(self._waiting)
        return any(null.startswith(text) for null in _NULLS)


def typed_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a written value: what the types allow it to be, strings last."""
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return "null"
    if "boolean" in types and (truth := _TRUTHS.get(bare.lower())):
        return truth
    bare = LenientJson.whole(bare) if bare[:1] in {"{", "["} else literal_json(bare) or bare
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        return as_json(text)
    kind = {dict: "object", list: "array", int: "integer", float: "number"}.get(type(value), "")
    if kind in types or (kind == "integer" and "number" in types):
        return bare
    if kind == "number" and "integer" in types and value.is_integer():
        return str(int(value))
    return as_json(text)
