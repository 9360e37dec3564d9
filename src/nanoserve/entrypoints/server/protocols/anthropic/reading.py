"""From the bodies of `/v1/messages` to a conversation and sampling parameters; every field is honoured or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nanoserve.entrypoints.app.orders import FREE, Conversation, Format, ReasoningBudget
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import (
    effort_options,
    function_tool,
    read_sampling,
    read_tools,
    reasoning_budget,
    required,
    schema_format,
    switch_options,
    tool_choice,
)
from nanoserve.entrypoints.server.protocols.anthropic.body import Chosen, CountTokens, CreateMessage
from nanoserve.entrypoints.server.protocols.anthropic.turns import read_messages
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

_MODES: Final = {
    "auto": CallMode.AUTO,
    "any": CallMode.REQUIRED,
    "tool": CallMode.REQUIRED,
    "none": CallMode.NONE,
}
_THINKING: Final = ("enabled", "adaptive", "disabled")


def read_prompt(body: CountTokens, service: TextService) -> Conversation:
    """What to render; turns of one role that follow each other are one, and the system prompt comes first."""
    messages = read_messages(body)
    if not messages:
        raise BadValueError("messages", "must hold at least one message that says something")
    continues = messages[-1]["role"] == "assistant"
    if continues:
        _check_continued(body, messages[-1]["content"])
    return Conversation(
        messages,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tools=read_tools(body.tools, service, _tool),
        options=_options(body, service),
    )


def read_choice(given: Chosen | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Which of the tools are called."""
    if given is None:
        return FREE
    if given.type not in _MODES:
        raise BadValueError(
            "tool_choice.type", f"must be one of {', '.join(_MODES)}, got {shown(given.type)}"
        )
    names = [] if given.name is None else [given.name]
    if (given.type == "tool") != bool(names):
        raise BadValueError("tool_choice.name", "goes with the type tool, which needs it")
    return tool_choice(_MODES[given.type], tools, names=names, parallel=not given.disable_parallel_tool_use)


def read_budget(body: CountTokens, service: TextService) -> ReasoningBudget | None:
    """The most tokens to think."""
    tokens = None if body.thinking is None else body.thinking.budget_tokens
    return reasoning_budget(service, tokens, "thinking.budget_tokens")


def read_format(body: CountTokens) -> Format | None:
    """What the text must be."""
    if body.output_format is not None:
        return schema_format("output_format", body.output_format)
    given = None if body.output_config is None else body.output_config.format
    return schema_format("output_config.format", given)


def _check_continued(body: CountTokens, content: str | list[dict[str, str]]) -> None:
    """What Anthropic refuses of an answer that the client has begun."""
    last = content if isinstance(content, str) else content[-1]["text"]
    if last != last.rstrip():
        raise BadValueError("messages", "end with an assistant's turn, which cannot end with white space")
    if body.thinking is not None and body.thinking.type != "disabled":
        raise BadValueError(
            "thinking.type", "can only be disabled where messages end with an assistant's turn"
        )


def _options(body: CountTokens, service: TextService) -> Mapping[str, Any]:
    """What the template is told about thinking."""
    effort = None if body.output_config is None else body.output_config.effort
    options = dict(effort_options(service, effort, "output_config.effort"))
    if (thinking := body.thinking) is not None:
        if thinking.type not in _THINKING:
            raise BadValueError(
                "thinking.type", f"must be one of {', '.join(_THINKING)}, got {shown(thinking.type)}"
            )
        if thinking.display not in {None, "summarized", "omitted"}:
            raise BadValueError(
                "thinking.display", f"must be summarized or omitted, got {shown(thinking.display)}"
            )
        options |= switch_options(service, "thinking.type", on=thinking.type != "disabled")
    return options


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    if given.get("type") not in (None, "custom"):
        raise BadValueError(f"{where}.type", f"must be custom, got {shown(given['type'])}")
    required(given, "input_schema", dict, where)
    return function_tool(given, where, schema="input_schema")


def read_message_sampling(body: CreateMessage, defaults: Mapping[str, Any]) -> SamplingParams:
    """What to sample."""
    return read_sampling(body, Api.ANTHROPIC, defaults)
