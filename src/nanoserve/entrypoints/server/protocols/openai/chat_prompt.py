"""From a chat's body to the conversation that is rendered, and the calls that its answer may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.reasoning_fields import (
    effort_options,
    switch_options,
    template_options,
)
from nanoserve.entrypoints.server.http.tool_fields import function_tool, openai_choice, read_tools, required
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody, TokenizeBody
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.tool_calls import Tool, ToolChoice


def read_conversation(body: ChatBody | TokenizeBody, service: TextService) -> Conversation:
    """What to render; raises `BadValueError`."""
    options: dict[str, Any] = dict(effort_options(service, body.reasoning_effort, "reasoning_effort"))
    if body.enable_thinking is not None:
        options |= switch_options(service, "enable_thinking", on=body.enable_thinking)
    return Conversation(
        body.messages or [],
        add_generation_prompt=body.add_generation_prompt is not False,
        tools=read_tools(body.tools, service, _tool),
        options={**options, **template_options(service, body.chat_template_kwargs)},
    )


def read_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    """Which of the tools are called; raises `BadValueError`."""
    return openai_choice(body.tool_choice, tools, body.parallel_tool_calls)


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    if given.get("type") != "function":
        raise BadValueError(f"{where}.type", f"must be function, got {shown(given.get('type'))}")
    return function_tool(required(given, "function", dict, where), f"{where}.function")
