"""From a chat's body to the conversation that is rendered, and the calls that its answer may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import (
    called,
    custom_tool,
    effort_options,
    function_tool,
    openai_choice,
    read_tools,
    required,
    switch_options,
    template_options,
)
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody, TokenizeBody
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool, ToolChoice


def read_conversation(body: ChatBody | TokenizeBody, service: TextService) -> Conversation:
    """What to render; raises `BadValueError`."""
    options: dict[str, Any] = dict(effort_options(service, body.reasoning_effort, "reasoning_effort"))
    if body.enable_thinking is not None:
        options |= switch_options(service, "enable_thinking", on=body.enable_thinking)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise BadValueError("add_generation_prompt", "is false where `continue_final_message` is true")
    if continues and body.enable_thinking:
        raise BadValueError("enable_thinking", "does not go with `continue_final_message`")
    return Conversation(
        [_message(each, f"messages[{place}]") for place, each in enumerate(body.messages or [])],
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        tools=read_tools(body.tools, service, _tool),
        options={**options, **template_options(service, body.chat_template_kwargs)},
    )


def read_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    """Which of the tools are called; raises `BadValueError`."""
    return openai_choice(body.tool_choice, tools, body.parallel_tool_calls)


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    kind = given.get("type")
    if kind == "custom":
        return custom_tool(required(given, kind, dict, where), f"{where}.{kind}")
    if kind != "function":
        raise BadValueError(f"{where}.type", f"must be function or custom, got {shown(kind)}")
    return function_tool(required(given, kind, dict, where), f"{where}.{kind}")


def _message(message: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """With earlier calls of custom tools as the model knows them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = [_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return {**message, "tool_calls": changed}


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, Mapping) or call.get("type") != "custom":
        return call
    custom = required(call, "custom", dict, where)
    name, text = (required(custom, each, str, f"{where}.custom") for each in ("name", "input"))
    return {"id": call.get("id"), "type": "function", "function": called(name, text)}
