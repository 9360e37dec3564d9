"""The items of a conversation as `/v1/responses` shows and keeps them: JSON objects, read from clients and converted for templates."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from nanoserve.entrypoints.app.answer import CallPart, Part, ReasoningPart
from nanoserve.entrypoints.server.http.field_support import check_word
from nanoserve.entrypoints.server.http.fields import called, needed
from nanoserve.entrypoints.server.protocols.responses.wire import InputItem, InputPart
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError

Item = dict[str, Any]
PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}
"""The beginnings of the ids of items, by the type of the item."""
CALL_TEXTS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call that has the text of the model."""
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_ROLES: Final = ("user", "assistant", "system", "developer")


def texts_of(item: Item) -> list[str]:
    """The texts that an item holds."""
    field = "output" if item["type"] in _OUTPUTS else CALL_TEXTS.get(item["type"])
    return [part["text"] for part in item["content"]] if field is None else [item[field]]


def item_of(part: Part, status: str, logprobs: Sequence[Any] = ()) -> Item:
    """The item of a part of an answer."""
    if isinstance(part, CallPart):
        kind = "custom_tool_call" if part.is_custom else "function_call"
        return _call(kind, part.id, part.name, part.text, status)
    if isinstance(part, ReasoningPart):
        return _reasoning([part.text], status)
    return _message("assistant", [part.text], status, logprobs)


def read_items(sent: str | Sequence[InputItem], find: Callable[[str], Item | None]) -> tuple[Item, ...]:
    """The input as items, each with an id of its own, except those that are references, which `find` looks up."""
    if isinstance(sent, str):
        return (_message("user", [sent]),)
    if not sent:
        raise BadValueError("input", "must be text or a list with at least one message")
    return tuple(_read_item(item, f"input[{place}]", find) for place, item in enumerate(sent))


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """The conversation as chat templates take it; instructions are a system message before it.

    Reasoning, a text and calls that follow each other are one turn of the assistant.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        last = messages[-1] if messages else {}
        is_open = not last.get("content") and "tool_calls" not in last
        match item["type"]:
            case "message" if item["role"] == "assistant":
                _turn(messages, is_open=is_open)["content"] = _content(item)
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _content(item)})
            case "reasoning":
                turn = _turn(messages, is_open=is_open)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + "".join(texts_of(item))
            case "function_call" | "custom_tool_call":
                call = {"id": item["call_id"], "type": "function", "function": _function(item)}
                _turn(messages, is_open=True).setdefault("tool_calls", []).append(call)
            case _:
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return list(messages)


def _function(item: Item) -> dict[str, str]:
    if item["type"] == "custom_tool_call":
        return called(item["name"], item["input"])
    return {"name": item["name"], "arguments": item["arguments"]}


def _turn(messages: list[dict[str, Any]], *, is_open: bool) -> dict[str, Any]:
    """The assistant's unfinished turn, if the last message is one, or a new one."""
    if not (messages and messages[-1]["role"] == "assistant" and is_open):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(item: Item) -> str | list[dict[str, str]]:
    texts = texts_of(item)
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _new(kind: str, **fields: Any) -> Item:
    return {"id": f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, **fields}


def _message(
    role: str, texts: Iterable[str], status: str = "completed", logprobs: Sequence[Any] = ()
) -> Item:
    is_said = role == "assistant"
    kind = "output_text" if is_said else "input_text"
    more = {"annotations": [], "logprobs": list(logprobs)} if is_said else {}
    content = [{"type": kind, "text": text, **more} for text in texts]
    return _new("message", role=role, status=status, content=content)


def _reasoning(texts: Iterable[str], status: str) -> Item:
    """It comes as it is, so there is no summary of it."""
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return _new("reasoning", status=status, summary=[], content=content, encrypted_content=None)


def _call(kind: str, call_id: str, name: str, text: str, status: str) -> Item:
    return _new(kind, status=status, call_id=call_id, name=name, **{CALL_TEXTS[kind]: text})


def _read_item(item: InputItem, where: str, find: Callable[[str], Item | None]) -> Item:
    match item.type:
        case "message":
            check_word(f"{where}.role", item.role, _ROLES)
            return _message(str(item.role), _texts(item.content, f"{where}.content", _TEXT_PARTS))
        case "reasoning":
            return _reasoning(
                _texts(item.content or [], f"{where}.content", ("reasoning_text",)), "completed"
            )
        case "function_call" | "custom_tool_call" as kind:
            names = ("call_id", "name", CALL_TEXTS[kind])
            call_id, name, text = (needed(getattr(item, each), f"{where}.{each}") for each in names)
            return _call(kind, call_id, name, text, "completed")
        case "function_call_output" | "custom_tool_call_output" as kind:
            output = "\n".join(_texts(item.output, f"{where}.output", _TEXT_PARTS))
            call_id = needed(item.call_id, f"{where}.call_id")
            return _new(kind, status="completed", call_id=call_id, output=output)
        case "item_reference":
            if (found := find(needed(item.id, f"{where}.id"))) is None:
                raise BadValueError(f"{where}.id", f"no stored response has the item {shown(item.id)}")
            return found
    calls = "function_call, function_call_output, custom_tool_call, custom_tool_call_output"
    message = f"must be message, reasoning, {calls} or item_reference"
    raise BadValueError(f"{where}.type", f"{message}, got {shown(item.type)}")


def _texts(content: str | list[InputPart] | None, where: str, kinds: Sequence[str]) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = needed(content, where)
    for place, part in enumerate(parts):
        if part.type not in kinds:
            raise BadValueError(
                f"{where}[{place}].type", f"this server takes text only, got {shown(part.type)}"
            )
    return [needed(part.text, f"{where}[{place}].text") for place, part in enumerate(parts)]
