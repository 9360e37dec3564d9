"""The body of `POST /v1/responses`: every field of OpenAI's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct, field

from nanoserve.entrypoints.server.http.field_support import only
from nanoserve.entrypoints.server.http.sampling_fields import sampling_body
from nanoserve.ports.parameter import Api


class InputPart(Struct, kw_only=True):
    """A part of a message; only text is understood. `annotations` and `logprobs` of earlier output say nothing new."""

    type: str
    text: str | None = None
    annotations: Any = None
    logprobs: Any = None


class InputItem(Struct, kw_only=True):
    """A message, a call of a tool, what a tool said, or reasoning; other kinds of items are refused by their type.

    The last fields, of earlier output, say nothing new.
    """

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None

    id: str | None = None
    status: str | None = None
    phase: str | None = None
    summary: Any = None
    encrypted_content: Any = None
    namespace: Any = None
    caller: Any = None
    async_: Any = field(default=None, name="async")


class ReasoningOptions(Struct, kw_only=True):
    """How hard to reason; what the model thinks is not summed up."""

    effort: str | None = None
    summary: Annotated[str | None, only()] = None
    generate_summary: Annotated[str | None, only()] = None
    context: Annotated[str | None, only("auto")] = None
    mode: Annotated[str | None, only("standard")] = None


class TextOptions(Struct, kw_only=True):
    """What the text must be."""

    format: dict[str, Any] | None = None
    verbosity: Annotated[str | None, only("medium")] = None


class StreamOptions(Struct, kw_only=True):
    """Streams carry no padding against observers of their sizes."""

    include_obfuscation: Annotated[bool, only(False)] = False


@sampling_body(Api.RESPONSES)
class CreateResponse(Struct, kw_only=True):
    """What to answer and how."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
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
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    prompt: Annotated[Any, only()] = None
