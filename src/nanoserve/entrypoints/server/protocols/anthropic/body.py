"""The bodies of `/v1/messages`: every field of Anthropic's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from nanoserve.entrypoints.server.http.field_support import refusing
from nanoserve.entrypoints.server.http.sampling_fields import sampling_body
from nanoserve.ports.parameter import Api


class ContentBlock(Struct, kw_only=True):
    """A part of a message: text, a tool's result, or of an earlier answer what was thought and called.

    `cache_control` is a hint, and every prompt is cached here; the last fields, of earlier answers, say nothing new.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    cache_control: Any = None

    citations: Any = None
    signature: Any = None
    data: Any = None
    caller: Any = None
    toolset_name: Any = None


class MessageParam(Struct, kw_only=True):
    """One turn."""

    role: str
    content: str | list[ContentBlock]


class Metadata(Struct, kw_only=True):
    """Who is asking, as the client calls them; nothing depends on it."""

    user_id: str | None = None


class Thinking(Struct, kw_only=True):
    """Whether to think; `display: omitted` leaves what was thought out of the answer."""

    type: str
    display: str | None = None


class OutputConfig(Struct, kw_only=True):
    """How hard to think, and what the text must be."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class Chosen(Struct, kw_only=True):
    """Which tools are called: auto, any, none, or the one named."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@refusing
class CountTokens(Struct, kw_only=True):
    """What to count."""

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    cache_control: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Chosen | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


@sampling_body(Api.ANTHROPIC)
class CreateMessage(CountTokens, kw_only=True):
    """What to answer and how."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
