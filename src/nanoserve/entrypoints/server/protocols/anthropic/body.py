"""The bodies of `/v1/messages`: every field of Anthropic's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from nanoserve.entrypoints.server.http.field_support import refusing
from nanoserve.entrypoints.server.http.sampling_fields import sampling_body
from nanoserve.ports.parameter import Api


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


@refusing
class CountTokens(Struct, kw_only=True):
    """What to count."""

    messages: list[MessageParam]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    cache_control: dict[str, Any] | None = None


@sampling_body(Api.ANTHROPIC)
class CreateMessage(CountTokens, kw_only=True):
    """What to answer and how."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
