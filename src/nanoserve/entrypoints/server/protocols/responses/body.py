"""The body of `POST /v1/responses`: every field of OpenAI's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from nanoserve.entrypoints.server.http.own_sampling import OwnSampling


class InputPart(Struct, kw_only=True):
    """A part of a message; only text is understood. `annotations` and `logprobs` of earlier output say nothing new."""

    type: str
    text: str | None = None
    annotations: Any = None
    logprobs: Any = None


class InputItem(Struct, kw_only=True):
    """A message of the conversation; other kinds of items are refused by their type."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class ReasoningOptions(Struct, kw_only=True):
    """How to reason; there is nothing to choose."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(Struct, kw_only=True):
    """How the text is to be shaped; only plain text is made."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamOptions(Struct, kw_only=True):
    """Streams carry no padding against observers of their sizes."""

    include_obfuscation: bool = False


class CreateResponse(OwnSampling, kw_only=True):
    """What to answer and how.

    Fields typed `Any` belong to features that this server does not have; they are refused by name unless they hold
    what is the default anyway.
    """

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    tool_choice: Any = None
    tools: Any = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    service_tier: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None
    stop: str | list[str] | None = None
    logprobs: Any = None
