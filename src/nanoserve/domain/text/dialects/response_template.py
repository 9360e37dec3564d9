"""Reads a checkpoint's own `response_template`, in the form of transformers, into a dialect.

Such a template has literals and regular expressions. Those expressions are read here that are literals with white space and
named groups between them, which is what published templates have; anything else is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.domain.text.dialects import dialect
from nanoserve.domain.text.dialects.families import FAMILIES
from nanoserve.ports.errors import ModelLoadError

NAME: Final = "response_template"
_REASONING: Final = ("thinking", "reasoning_content", "reasoning")
_BLANK: Final = re.compile(r"\\[sn][*+?]?")
_GROUP: Final = re.compile(r"\(\?P<(\w+)>(?:[^()\\]|\\.)*\)")
_PLAIN: Final = re.compile(r"\\([^A-Za-z0-9])|([^\\^$.|?*+()\[\]{}])")


def read_response_template(template: Mapping[str, Any]) -> dialect.Dialect:
    """The dialect that a template describes; raises `ModelLoadError` for what no dialect can say.

    Where a family of the table has the same marks and the same form of calls, it is that family: the table knows the white
    space between the marks, too.
    """
    fields = template.get("fields")
    if not isinstance(fields, Mapping):
        raise _unreadable("fields", fields)
    reasoning = calls = None
    for name, field in fields.items():
        if not isinstance(field, Mapping):
            raise _unreadable(f"fields.{name}", field)
        if name in _REASONING:
            reasoning = dialect.Region(_literal(name, field, "open"), _literal(name, field, "close"))
        elif name == "tool_calls":
            calls = _calls(field)
        elif "open" in field or "open_pattern" in field:
            raise _unreadable(f"fields.{name}", "a region of its own")
    read = dialect.Dialect(name=NAME, reasoning=reasoning, calls=calls)
    return next((each.dialect for each in FAMILIES if _is_same(each.dialect, read)), read)


def _is_same(known: dialect.Dialect, read: dialect.Dialect) -> bool:
    if known.calls is None or read.calls is None:
        return known.calls is read.calls and known.marks == read.marks
    return known.marks == read.marks and type(known.calls.form) is type(read.calls.form)


def _calls(field: Mapping[str, Any]) -> dialect.Calls:
    opening = _parts("tool_calls", field, "open")
    close = _parts("tool_calls", field, "close")
    content = field.get("content", "text")
    function = field.get("transform")
    function = function.get("function", function) if isinstance(function, Mapping) else function
    if opening[1:2] == ["name"] and len(opening) == 3 and isinstance(function, Mapping):
        marks = [part for part in opening[0].split("\0") if part]
        section = dialect.Region(marks[0], close[-1].split("\0")[-1]) if len(marks) == 2 else None
        if content not in {"json", "xml-inline"}:
            raise _unreadable("tool_calls.content", content)
        arguments = dialect.JsonArguments() if content == "json" else _elements(field.get("content_args"))
        return dialect.Calls(
            form=dialect.NamedCall(after=opening[2].strip("\0"), arguments=arguments),
            section=section,
            one_each=section is not None,
            loose=section is not None,
            open=marks[-1],
            close=close[0].split("\0")[0],
        )
    if len(opening) == 1 and content == "json" and field.get("content_args") is None:
        listed = field.get("transform_each") is True
        if function != "{content}" and not isinstance(function, Mapping):
            raise _unreadable("tool_calls.transform", function)
        end = close[0].strip("\0") if close else ""
        return dialect.Calls(form=dialect.KeyedCall(listed=listed), open=opening[0].strip("\0"), close=end)
    raise _unreadable("tool_calls", content)


def _elements(arguments: Any) -> dialect.XmlArguments:
    pattern = arguments.get("tag_pattern") if isinstance(arguments, Mapping) else None
    if not isinstance(pattern, str) or len(parts := _split("tag_pattern", pattern)) != 5:
        raise _unreadable("tool_calls.content_args.tag_pattern", pattern)
    key_open, first, between, second, close = parts
    if (first, second) != ("key", "value"):
        raise _unreadable("tool_calls.content_args.tag_pattern", pattern)
    key_close, *value_open = [part for part in between.split("\0") if part]
    return dialect.XmlArguments(
        key_open=key_open.strip("\0"),
        key_close=key_close,
        value_open="".join(value_open),
        value_close=close.strip("\0"),
        pad="\n" if close.startswith("\0") else "",
    )


def _literal(name: str, field: Mapping[str, Any], side: str) -> str:
    parts = _parts(name, field, side)
    if len(parts) != 1 or "\0" in parts[0].strip("\0"):
        raise _unreadable(f"{name}.{side}", parts)
    return parts[0].strip("\0")


def _parts(name: str, field: Mapping[str, Any], side: str) -> list[str]:
    """Literal, name of a group, literal ... with white space as NUL; empty if the field has none."""
    if isinstance(literal := field.get(side), str):
        return [literal]
    if isinstance(literal, list) and literal and all(isinstance(each, str) for each in literal):
        return [literal[0]]
    pattern = field.get(f"{side}_pattern")
    if pattern is None and literal is None:
        return []
    if not isinstance(pattern, str):
        raise _unreadable(f"{name}.{side}", literal or pattern)
    return _split(f"{name}.{side}_pattern", pattern)


def _split(name: str, pattern: str) -> list[str]:
    parts = [""]
    place = 0
    while place < len(pattern):
        if found := _BLANK.match(pattern, place):
            parts[-1] += "\0"
        elif found := _GROUP.match(pattern, place):
            parts += [found[1], ""]
        elif found := _PLAIN.match(pattern, place):
            parts[-1] += found[1] or found[2]
        else:
            raise _unreadable(name, pattern)
        place = found.end()
    return parts


def _unreadable(name: str, value: Any) -> ModelLoadError:
    return ModelLoadError(
        f"the model's response_template cannot be read: {name} is {value!r:.120}; choose one with --dialect"
    )
