"""Checks a conversation and its tools and brings them into the one form that every chat template understands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nanoserve.adapters.huggingface.tokenizer import check_unicode
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool

OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as dicts whose content is text.

    Text parts are joined with line breaks, as vLLM does for templates that take text; no content is "" and other
    keys that are None are left out. As in transformers, a message's reasoning goes by every name that templates read.
    Raises `BadValueError`, naming the message, for anything that is not text.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise BadValueError("messages", "must be a list with at least one message")
    try:
        return [_plain_message(message, f"messages[{place}]") for place, message in enumerate(messages)]
    except RecursionError:
        raise BadValueError("messages", "are nested too deeply") from None


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Tools in the form that templates take, None where there are none. Raises `BadValueError` as `plain_messages` does."""
    plain = [tool.as_message() for tool in tools]
    for place, tool in enumerate(plain):
        _check_values(tool, f"tools[{place}]")
    return plain or None


def plain_options(options: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Variables for the template besides its own and the `taken` ones. Raises `BadValueError` for one of those."""
    for name in options:
        if name in OWN_VARIABLES or name in taken:
            raise BadValueError(
                "chat_template_kwargs", f"cannot set {name!r}, which is not a client's to choose"
            )
    _check_values(dict(options), "chat_template_kwargs")
    return dict(options)


def _plain_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadValueError(where, f"must be an object with role and content, got {message!r}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadValueError(f"{where}.role", f"must be a non-empty text, got {role!r}")
    kept = {key: value for key, value in message.items() if value is not None}
    plain = {**kept, "content": _text(message.get("content"), f"{where}.content")}
    _check_values(plain, where)
    reasoning = next((plain[name] for name in REASONING_NAMES if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise BadValueError(where, f"must be text, null or a list of text parts, got {content!r}")
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise BadValueError(where, f"has type {kind!r}, but this model takes text parts only")
    text = part.get("text")
    if not isinstance(text, str):
        raise BadValueError(f"{where}.text", f"must be text, got {text!r}")
    return text


def _check_values(value: Any, where: str) -> None:
    """Only what JSON can hold, and only valid Unicode, reaches a template."""
    if isinstance(value, str):
        try:
            check_unicode(value)
        except BadValueError as error:
            raise BadValueError(where, str(error)) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, where)
            _check_values(item, f"{where}.{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_values(item, f"{where}[{place}]")
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise BadValueError(where, f"must be a JSON value, got {type(value).__name__}")
