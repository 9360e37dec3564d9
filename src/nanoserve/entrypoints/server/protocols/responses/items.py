"""The items of a conversation as `/v1/responses` keeps them, from what clients send and to what chat templates take."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from nanoserve.entrypoints.server.http.fields import called
from nanoserve.entrypoints.server.protocols.responses.answer import (
    CallOutput,
    CustomToolCall,
    FunctionCall,
    InputMessage,
    InputText,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from nanoserve.entrypoints.server.protocols.responses.body import InputItem, InputPart
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError

Item = InputMessage | OutputItem | CallOutput
MESSAGE: Final = "msg"
REASONING: Final = "rs"
CALL: Final = "fc"
CUSTOM_CALL: Final = "ctc"
_OUTPUTS: Final = {"function_call_output": "fco", "custom_tool_call_output": "ctco"}

_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_ROLES: Final = ("user", "assistant", "system", "developer")


def new_id(kind: str) -> str:
    """An id for an item of a conversation, which begins with its kind."""
    return f"{kind}_{uuid.uuid4().hex}"


def texts_of(item: Item) -> Iterator[str]:
    """The texts that an item holds."""
    if isinstance(item, FunctionCall):
        yield item.arguments
    elif isinstance(item, CustomToolCall):
        yield item.input
    elif isinstance(item, CallOutput):
        yield item.output
    else:
        yield from (part.text for part in item.content)


def read_items(
    given: str | Sequence[InputItem], find: Callable[[str], Item | None] = lambda _: None
) -> tuple[Item, ...]:
    """The input as items, each with an id of its own, but for those that are references, which `find` looks up."""
    if isinstance(given, str):
        return (InputMessage(id=new_id(MESSAGE), role="user", content=[InputText(text=given)]),)
    if not given:
        raise BadValueError("input", "must be text or a list with at least one message")
    return tuple(
        _referenced(item, f"input[{place}]", find)
        if item.type == "item_reference"
        else _read_item(item, f"input[{place}]")
        for place, item in enumerate(given)
    )


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """The conversation as chat templates take it; instructions are a system message before it.

    Reasoning, a text and calls that follow each other are one turn of the assistant.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        if isinstance(item, CallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif isinstance(item, InputMessage):
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _content(item)})
        else:
            _add_said(messages, item)
    return list(messages)


def _add_said(messages: list[dict[str, Any]], item: OutputItem) -> None:
    last = messages[-1] if messages else {}
    if isinstance(item, (FunctionCall, CustomToolCall)):
        function = (
            called(item.name, item.input)
            if isinstance(item, CustomToolCall)
            else {"name": item.name, "arguments": item.arguments}
        )
        call = {"id": item.call_id, "type": "function", "function": function}
        _turn(messages, is_open=True).setdefault("tool_calls", []).append(call)
        return
    is_open = not last.get("content") and "tool_calls" not in last
    if isinstance(item, ReasoningItem):
        turn = _turn(messages, is_open=is_open)
        turn["reasoning_content"] = turn.get("reasoning_content", "") + "".join(texts_of(item))
    else:
        _turn(messages, is_open=is_open)["content"] = _content(item)


def _turn(messages: list[dict[str, Any]], *, is_open: bool) -> dict[str, Any]:
    """The assistant's turn that goes on, if the last message is one, or a new one."""
    if not (messages and messages[-1]["role"] == "assistant" and is_open):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(item: InputMessage | OutputMessage) -> str | list[dict[str, str]]:
    texts = list(texts_of(item))
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _referenced(item: InputItem, where: str, find: Callable[[str], Item | None]) -> Item:
    found = find(_given(item.id, f"{where}.id"))
    if found is None:
        raise BadValueError(f"{where}.id", f"no stored response has the item {shown(item.id)}")
    return found


def _read_item(item: InputItem, where: str) -> Item:
    match item.type:
        case "message":
            return _read_message(item, where)
        case "reasoning":
            thought = (
                [] if item.content is None else _texts(item.content, f"{where}.content", ("reasoning_text",))
            )
            content = [ReasoningText(text=text) for text in thought]
            return ReasoningItem(id=new_id(REASONING), status="completed", content=content)
        case "function_call":
            return FunctionCall(
                id=new_id(CALL),
                status="completed",
                call_id=_given(item.call_id, f"{where}.call_id"),
                name=_given(item.name, f"{where}.name"),
                arguments=_given(item.arguments, f"{where}.arguments"),
            )
        case "custom_tool_call":
            return CustomToolCall(
                id=new_id(CUSTOM_CALL),
                status="completed",
                call_id=_given(item.call_id, f"{where}.call_id"),
                name=_given(item.name, f"{where}.name"),
                input=_given(item.input, f"{where}.input"),
            )
        case "function_call_output" | "custom_tool_call_output" as kind:
            said = _texts(item.output, f"{where}.output", _TEXT_PARTS)
            call_id = _given(item.call_id, f"{where}.call_id")
            return CallOutput(id=new_id(_OUTPUTS[kind]), type=kind, call_id=call_id, output="\n".join(said))
    calls = "function_call, function_call_output, custom_tool_call, custom_tool_call_output"
    message = f"must be message, reasoning, {calls} or item_reference"
    raise BadValueError(f"{where}.type", f"{message}, got {shown(item.type)}")


def _read_message(item: InputItem, where: str) -> Item:
    if item.role not in _ROLES:
        raise BadValueError(f"{where}.role", f"must be one of {', '.join(_ROLES)}, got {shown(item.role)}")
    texts = _texts(item.content, f"{where}.content", _TEXT_PARTS)
    if item.role == "assistant":
        said = [OutputText(text=text) for text in texts]
        return OutputMessage(id=new_id(MESSAGE), status="completed", content=said)
    sent = [InputText(text=text) for text in texts]
    return InputMessage(id=new_id(MESSAGE), role=item.role, content=sent)


def _texts(content: str | list[InputPart] | None, where: str, kinds: Sequence[str]) -> list[str]:
    if content is None:
        raise BadValueError(where, "is required")
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{where}[{place}]", kinds) for place, part in enumerate(content)]


def _text(part: InputPart, where: str, kinds: Sequence[str]) -> str:
    if part.type not in kinds:
        raise BadValueError(f"{where}.type", f"this server takes text only, got {shown(part.type)}")
    return _given(part.text, f"{where}.text")


def _given(value: str | None, where: str) -> str:
    if value is None:
        raise BadValueError(where, "is required")
    return value
