"""The endpoints of `/v1/messages`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
from litestar import Response, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.orders import FREE, Conversation, Format, ReasoningBudget
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.bodies import bounds_of, documented
from nanoserve.entrypoints.server.http.field_support import check_word
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.protocols.anthropic import wire
from nanoserve.entrypoints.server.protocols.anthropic.edits import edited
from nanoserve.entrypoints.server.protocols.anthropic.threads import Threading, is_of_thread
from nanoserve.entrypoints.server.protocols.anthropic.writer import MessageWriter
from nanoserve.ports.checks import shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import Api
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

_ANSWER: Final = {200: ResponseSpec(wire.Message, description="The message, or its events if streamed")}


@post("/v1/messages", status_code=200, responses=_ANSWER, **documented(wire.CreateMessage))
async def create_message(
    context: NamedDependency[RequestContext], conversations: NamedDependency[ConversationStore]
) -> Response[Any]:
    """Answer a conversation, at once or as a stream of events."""
    body, model = await context.asked(wire.CreateMessage)
    service, request = context.service, context.request
    threading = Threading(
        body,
        is_announced=is_of_thread(request.scope["headers"]),
        owner=context.client.name,
        store=conversations,
        max_bytes=bounds_of(request).max_body_size,
    )
    body = threading.body
    prompt, edits = await context.unless_left(edited(body, read_prompt(body, service), service))
    order = fields.make_order(
        body,
        prompt=prompt,
        prompt_name="messages",
        sampling=fields.read_sampling(body, Api.ANTHROPIC, service.settings.defaults),
        client=context.client,
        calls=read_choice(body.tool_choice, prompt.tools),
        format=read_format(body),
        budget=read_budget(body, service),
    )
    writer = MessageWriter(
        model,
        omits_thinking=body.thinking is not None and body.thinking.display == "omitted",
        edits=edits,
        on_end=None if body.thread is None else threading.keep,
    )
    return await context.respond(writer, [order])


@post("/v1/messages/count_tokens", status_code=200, **documented(wire.CountTokens))
async def count_tokens(context: NamedDependency[RequestContext]) -> wire.TokenCount:
    """The number of tokens of the prompt."""
    body, _ = await context.asked(wire.CountTokens)
    return await context.unless_left(_counted(body, context.service))


async def _counted(body: wire.CountTokens, service: TextService) -> wire.TokenCount:
    prompt, edits = await edited(body, read_prompt(body, service), service)
    counted = wire.TokenCount(len(await service.render(prompt)))
    if edits is not None:
        cleared = sum(each.cleared_input_tokens for each in edits)
        counted.context_management = {"original_input_tokens": counted.input_tokens + cleared}
    return counted


ROUTES: Final = (create_message, count_tokens)


_MODES: Final = {
    "auto": CallMode.AUTO,
    "any": CallMode.REQUIRED,
    "tool": CallMode.REQUIRED,
    "none": CallMode.NONE,
}
_THINKING: Final = ("enabled", "adaptive", "disabled")
_ROLES: Final = ("user", "assistant", "system")
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


def read_prompt(body: wire.CountTokens, service: TextService) -> Conversation:
    """The conversation to render; turns of one role that follow each other are one, and the system prompt comes first."""
    messages = _read_messages(body)
    if not messages:
        raise BadValueError("messages", "must hold at least one message with content")
    continues = messages[-1]["role"] == "assistant"
    if continues:
        _check_continued(body, messages[-1]["content"])
    return Conversation(
        messages,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tools=fields.read_tools(body.tools, service, _tool),
        options=_options(body, service),
    )


def read_choice(given: wire.AnthropicToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Which of the tools are called."""
    if given is None:
        return FREE
    check_word("tool_choice.type", given.type, _MODES)
    names = [] if given.name is None else [given.name]
    if (given.type == "tool") != bool(names):
        raise BadValueError("tool_choice.name", "goes with the type tool, which needs it")
    return fields.tool_choice(
        _MODES[given.type], tools, names=names, parallel=not given.disable_parallel_tool_use
    )


def read_budget(body: wire.CountTokens, service: TextService) -> ReasoningBudget | None:
    """The most tokens to think."""
    tokens = None if body.thinking is None else body.thinking.budget_tokens
    return fields.reasoning_budget(service, tokens, "thinking.budget_tokens")


def read_format(body: wire.CountTokens) -> Format | None:
    """The format that the text must have."""
    if body.output_format is not None:
        return fields.schema_format("output_format", body.output_format)
    given = None if body.output_config is None else body.output_config.format
    return fields.schema_format("output_config.format", given)


def _check_continued(body: wire.CountTokens, content: str | list[dict[str, str]]) -> None:
    """Refuse beginnings of an answer that Anthropic refuses."""
    last = content if isinstance(content, str) else content[-1]["text"]
    if last != last.rstrip():
        raise BadValueError("messages", "end with an assistant's turn, which cannot end with white space")
    if body.thinking is not None and body.thinking.type != "disabled":
        raise BadValueError("thinking.type", "can only be disabled if messages end with an assistant's turn")


def _options(body: wire.CountTokens, service: TextService) -> Mapping[str, Any]:
    """The template's options about thinking."""
    effort = None if body.output_config is None else body.output_config.effort
    options = dict(fields.effort_options(service, effort, "output_config.effort"))
    if (thinking := body.thinking) is not None:
        check_word("thinking.type", thinking.type, _THINKING)
        if thinking.display is not None:
            check_word("thinking.display", thinking.display, ("summarized", "omitted"))
        options |= fields.switch_options(service, "thinking.type", on=thinking.type != "disabled")
    return options


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    if given.get("type") not in (None, "custom"):
        raise BadValueError(f"{where}.type", f"must be custom, got {shown(given['type'])}")
    fields.required(given, "input_schema", dict, where)
    return fields.function_tool(given, where, schema="input_schema")


@attrs.define
class _Turn:
    """The words of one role before another speaks; the result of a tool is a turn of its own."""

    role: str
    texts: list[str] = attrs.field(factory=list)
    thoughts: list[str] = attrs.field(factory=list)
    calls: list[Message] = attrs.field(factory=list)
    answers: str | None = None

    def as_message(self) -> Message:
        parts = [{"type": "text", "text": each} for each in self.texts]
        message: dict[str, Any] = {"role": self.role}
        message["content"] = self.texts[0] if len(self.texts) == 1 else parts or ""
        if self.thoughts:
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message if self.answers is None else {**message, "tool_call_id": self.answers}


def _read_messages(body: wire.CountTokens) -> list[Message]:
    """The system prompt and all turns, those of one role joined. Raises `BadValueError`."""
    turns: list[_Turn] = []
    if body.system is not None:
        _read(turns, "system", body.system, "system")
    last_user = max((place for place, each in enumerate(body.messages) if each.role == "user"), default=-1)
    for place, message in enumerate(body.messages):
        where = f"messages[{place}]"
        check_word(f"{where}.role", message.role, _ROLES)
        if message.clear_at != "next_user_message" or place > last_user:
            _read(turns, message.role, message.content, f"{where}.content")
    return [each.as_message() for each in turns]


def _read(turns: list[_Turn], role: str, content: str | list[wire.ContentBlock], where: str) -> None:
    if isinstance(content, str):
        _turn(turns, role).texts.append(content)
        return
    for place, block in enumerate(content):
        _read_block(turns, role, block, f"{where}[{place}]")


def _read_block(turns: list[_Turn], role: str, block: wire.ContentBlock, where: str) -> None:
    if block.type not in KINDS[role]:
        kinds = ", ".join(KINDS[role])
        message = f"must be one of {kinds} in the turn of the {role}, got {shown(block.type)}"
        raise BadValueError(f"{where}.type", message)
    if block.type == "tool_result":
        call_id = fields.needed(block.tool_use_id, f"{where}.tool_use_id")
        turns.append(_Turn("tool", [_result(block, where)], answers=call_id))
        return
    turn = _turn(turns, role)
    if block.type == "text":
        turn.texts.append(fields.needed(block.text, f"{where}.text"))
    elif block.type == "thinking":
        turn.thoughts.append(fields.needed(block.thinking, f"{where}.thinking"))
    elif block.type == "tool_use":
        name, arguments = fields.needed(block.name, f"{where}.name"), block.input or {}
        call_id = fields.needed(block.id, f"{where}.id")
        turn.calls.append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )


def _turn(turns: list[_Turn], role: str) -> _Turn:
    """The last one if it is of that role, else a new one."""
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role))
    return turns[-1]


def _result(block: wire.ContentBlock, where: str) -> str:
    """The result of a tool as text; chat templates know no other sign of a failure than words."""
    content = block.content or ""
    if not isinstance(content, str):
        texts = []
        for place, part in enumerate(content):
            text = part.get("text")
            if part.get("type") != "text" or not isinstance(text, str):
                inside = f"{where}.content[{place}].type"
                raise BadValueError(inside, f"this server takes text only, got {shown(part.get('type'))}")
            texts.append(text)
        content = "\n".join(texts)
    return f"Error: {content}" if block.is_error else content
