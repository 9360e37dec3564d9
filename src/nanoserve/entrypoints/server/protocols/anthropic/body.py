"""The bodies of `/v1/messages`: every field of Anthropic's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from nanoserve.entrypoints.server.http.field_support import FIELDS, harmless, only, refusing, sampling_body
from nanoserve.ports.sampling import Api

_EARLIER: Final = harmless("of an earlier answer, and says nothing that the model could be told")


class ContentBlock(Struct, kw_only=True, omit_defaults=True):
    """A part of a message: text, a tool's result, or of an earlier answer what was thought and called."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None

    cache_control: Annotated[Any, FIELDS["cache_control"]] = None
    citations: Annotated[Any, _EARLIER] = None
    signature: Annotated[Any, _EARLIER] = None
    data: Annotated[Any, _EARLIER] = None
    caller: Annotated[Any, _EARLIER] = None
    toolset_name: Annotated[Any, _EARLIER] = None


class MessageParam(Struct, kw_only=True, omit_defaults=True):
    """One turn; one of the system that is cleared at the next user message is shown until then."""

    role: str
    content: str | list[ContentBlock]
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Annotated[Any, only({})] = None


class Metadata(Struct, kw_only=True):
    """Who is asking, as the client calls them."""

    user_id: Annotated[str | None, FIELDS["user"]] = None


class Thinking(Struct, kw_only=True):
    """Whether to think; `budget_tokens` bounds it, `display: omitted` leaves what was thought out of the answer."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None
    block_binding: Annotated[Any, harmless("what was thought is taken back unchecked")] = None


class OutputConfig(Struct, kw_only=True):
    """How hard to think, and what the text must be."""

    effort: str | None = None
    format: dict[str, Any] | None = None
    task_budget: Annotated[Any, only()] = None


class Amount(Struct, kw_only=True):
    """So many of something."""

    type: str
    value: Annotated[int, Meta(ge=0)] | None = None


class Edit(Struct, kw_only=True):
    """What is left out of a long conversation, and when; its type says which fields it has."""

    type: str
    keep: Literal["all"] | Amount | None = None
    trigger: Amount | None = None
    clear_at_least: Amount | None = None
    clear_tool_inputs: bool | list[str] | None = None
    exclude_tools: list[str] | None = None


class ContextManagement(Struct, kw_only=True):
    """How a long conversation is shortened."""

    edits: list[Edit] = field(default_factory=list)


class AnthropicToolChoice(Struct, kw_only=True):
    """Which tools are called: auto, any, none, or the one named."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThreadParam(Struct, kw_only=True):
    """Whether the server keeps the conversation from here on, or goes on with one that it has kept."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


@refusing
class CountTokens(Struct, kw_only=True):
    """What to count."""

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    context_management: ContextManagement | None = None


@sampling_body(Api.ANTHROPIC)
class CreateMessage(CountTokens, kw_only=True):
    """What to answer and how."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thread: ThreadParam | None = None
    metadata: Annotated[Metadata | None, FIELDS["metadata"]] = None
