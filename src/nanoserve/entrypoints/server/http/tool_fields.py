"""Tools as clients name them and what is to be done with them, checked; every protocol has its own shape for both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

_LONGEST_NAME: Final = 128
_EXTRA: Final = frozenset("_-.:/")
_SYNTAXES: Final = {"lark": ConstraintKind.LARK, "regex": ConstraintKind.REGEX}
_KINDS: Final = ("function", "custom")


def member(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A member of an object that must be of a kind, or null; None where it is missing. Raises `BadValueError`."""
    found = value.get(name)
    if found is not None and not isinstance(found, kind):
        kinds = {str: "a string", dict: "an object", list: "a list", bool: "true or false"}
        expected = " or ".join(kinds[each] for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise BadValueError(f"{where}.{name}", f"must be {expected}, got {shown(found)}")
    return found


def required(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """The same, where it must be there."""
    if (found := member(value, name, kind, where)) is None:
        raise BadValueError(f"{where}.{name}", "is required")
    return found


def function_tool(given: Mapping[str, Any], where: str, *, schema: str = "parameters") -> Tool:
    """One function, whose schema the protocol calls `schema`. Raises `BadValueError`."""
    name = _name(given, where)
    parameters = member(given, schema, dict, where)
    if parameters and parameters.get("type", "object") != "object":
        raise BadValueError(f"{where}.{schema}", "must be the schema of an object")
    return Tool(
        name=name,
        description=member(given, "description", str, where) or "",
        parameters={"type": "object", **parameters} if parameters else {"type": "object", "properties": {}},
        strict=bool(member(given, "strict", bool, where)),
    )


def custom_tool(given: Mapping[str, Any], where: str) -> Tool:
    """One that takes a text, of OpenAI's two interfaces, of which one has the grammar in an object of its own. Raises `BadValueError`."""
    name = _name(given, where)
    described = member(given, "format", dict, where) or {"type": "text"}
    kind = described.get("type")
    if kind not in ("text", "grammar"):
        raise BadValueError(f"{where}.format.type", f"must be text or grammar, got {shown(kind)}")
    form = None
    if kind == "grammar":
        inside = f"{where}.format.grammar" if "grammar" in described else f"{where}.format"
        grammar = member(described, "grammar", dict, f"{where}.format") or described
        syntax = required(grammar, "syntax", str, inside)
        if syntax not in _SYNTAXES:
            raise BadValueError(f"{inside}.syntax", f"must be lark or regex, got {shown(syntax)}")
        form = Constraint(_SYNTAXES[syntax], required(grammar, "definition", str, inside))
    return Tool.custom(name, member(given, "description", str, where) or "", form)


def called(name: str, text: str) -> dict[str, str]:
    """An earlier call of a custom tool as the function that the model knows."""
    return {"name": name, "arguments": json.dumps({"input": text}, ensure_ascii=False)}


def _name(given: Mapping[str, Any], where: str) -> str:
    name: str = required(given, "name", str, where)
    if not 0 < len(name) <= _LONGEST_NAME or not all(each.isalnum() or each in _EXTRA for each in name):
        allowed = f"1 to {_LONGEST_NAME} letters, digits and {''.join(sorted(_EXTRA))}"
        raise BadValueError(f"{where}.name", f"must have {allowed}, got {shown(name)}")
    return name


def read_tools(
    given: list[dict[str, Any]] | None,
    service: TextService,
    read: Callable[[Mapping[str, Any], str], Tool],
) -> tuple[Tool, ...]:
    """The tools of a request, each read by `read`; raises `BadValueError` where the model's way of calling is not known."""
    if not given:
        return ()
    if service.dialect is None or not service.dialect.has_calls:
        message = "are not supported: how this model calls tools is not known"
        raise BadValueError(
            "tools", f"{message}; if it writes calls as a known family does, start with --dialect"
        )
    tools = tuple(read(each, f"tools[{place}]") for place, each in enumerate(given))
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in names:
            raise BadValueError(f"tools[{place}].name", f"{shown(tool.name)} is the name of two tools")
        names.add(tool.name)
    return tools


def tool_choice(
    mode: CallMode, tools: tuple[Tool, ...], *, names: Iterable[str] = (), parallel: bool | None = None
) -> ToolChoice:
    """What is called, of tools that there are. Raises `BadValueError`."""
    known = {tool.name for tool in tools}
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in known:
            raise BadValueError("tool_choice", f"names {shown(name)}, which is not among the tools")
    if mode is CallMode.REQUIRED and not tools:
        raise BadValueError("tool_choice", "asks for a call, and there are no tools")
    return ToolChoice(mode, names, parallel=parallel is not False)


def openai_choice(given: Any, tools: tuple[Tool, ...], parallel: bool | None) -> ToolChoice:
    """As OpenAI's two interfaces write it: a mode, a tool, or the tools that are allowed. Raises `BadValueError`."""
    if given is None or isinstance(given, str):
        if given not in {None, *(mode.value for mode in CallMode)}:
            raise BadValueError(
                "tool_choice", f"must be none, auto, required or an object, got {shown(given)}"
            )
        return tool_choice(CallMode(given or "auto"), tools, parallel=parallel)
    if not isinstance(given, dict):
        raise BadValueError("tool_choice", f"must be a string or an object, got {shown(given)}")
    kind = given.get("type")
    if kind in _KINDS:
        return tool_choice(
            CallMode.REQUIRED, tools, names=[_named_tool(given, "tool_choice")], parallel=parallel
        )
    if kind == "allowed_tools":
        allowed = member(given, "allowed_tools", dict, "tool_choice") or given
        mode = allowed.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise BadValueError("tool_choice.mode", f"must be auto or required, got {shown(mode)}")
        listed = required(allowed, "tools", list, "tool_choice")
        names = [_named_tool(each, f"tool_choice.tools[{place}]") for place, each in enumerate(listed)]
        return tool_choice(CallMode(mode), tools, names=names, parallel=parallel)
    raise BadValueError("tool_choice.type", f"must be function, custom or allowed_tools, got {shown(kind)}")


def _named_tool(given: Any, where: str) -> str:
    """Of `{type: function, function: {name}}` and of `{type: function, name}`; of custom tools likewise."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _KINDS:
        raise BadValueError(where, "must be an object of the type function or custom")
    name: str = required(member(given, kind, dict, where) or given, "name", str, where)
    return name
