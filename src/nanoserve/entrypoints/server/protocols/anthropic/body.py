"""The bodies of `/v1/messages`: every field of Anthropic's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from nanoserve.entrypoints.server.http.own_sampling import OwnSampling


class ContentBlock(Struct, kw_only=True):
    """A part of a message; only text is understood.

    `cache_control` is a hint, and every prompt is cached here; `citations` of earlier answers say nothing new.
    """

    type: str
    text: str | None = None
    cache_control: Any = None
    citations: Any = None


class MessageParam(Struct, kw_only=True):
    """One turn."""

    role: str
    content: str | list[ContentBlock]


class Metadata(Struct, kw_only=True):
    """Who is asking, as the client calls them; nothing depends on it."""

    user_id: str | None = None


class CountTokens(Struct, kw_only=True):
    """What to count.

    Fields typed `Any` belong to features that this server does not have; they are refused by name unless they hold
    what is the default anyway.
    """

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    cache_control: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None
    output_format: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None


class CreateMessage(OwnSampling, kw_only=True):
    """What to answer and how; the first fields are those of `CountTokens`, as structs have one base only."""

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    cache_control: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None
    output_format: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None


Prompt = CountTokens | CreateMessage
