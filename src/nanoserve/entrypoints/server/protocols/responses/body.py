"""The body of `POST /v1/responses`: every field of OpenAI's interface, and this server's own sampling fields."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from nanoserve.entrypoints.server.http.field_support import FIELDS, harmless, only, sampling_body
from nanoserve.ports.sampling import Api

_EARLIER: Final = harmless("of an earlier answer, and says nothing that the model could be told")


class InputPart(Struct, kw_only=True):
    """A part of a message; only text is understood."""

    type: str
    text: str | None = None

    annotations: Annotated[Any, _EARLIER] = None
    logprobs: Annotated[Any, _EARLIER] = None
    prompt_cache_breakpoint: Annotated[Any, FIELDS["prompt_cache_options"]] = None


class InputItem(Struct, kw_only=True):
    """A message, a call of a tool, what a tool said, or reasoning; other kinds of items are refused by their type."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None

    id: Annotated[str | None, _EARLIER] = None
    status: Annotated[str | None, _EARLIER] = None
    phase: Annotated[str | None, _EARLIER] = None
    summary: Annotated[Any, _EARLIER] = None
    encrypted_content: Annotated[Any, _EARLIER] = None
    namespace: Annotated[Any, _EARLIER] = None
    caller: Annotated[Any, _EARLIER] = None
    async_: Annotated[Any, _EARLIER] = field(default=None, name="async")


_Key = Annotated[str, Meta(max_length=64)]
_Text = Annotated[str, Meta(max_length=512)]
_Detail = Literal["auto", "concise", "detailed"]
_NO_SUMMARY: Final = harmless("reasoning comes as it is, so there is no summary of it")


class ReasoningOptions(Struct, kw_only=True):
    """How hard to reason."""

    effort: str | None = None
    summary: Annotated[_Detail | None, _NO_SUMMARY] = None
    generate_summary: Annotated[_Detail | None, _NO_SUMMARY] = None
    context: Annotated[str | None, only("auto")] = None
    mode: Annotated[str | None, only("standard")] = None


class TextOptions(Struct, kw_only=True):
    """What the text must be."""

    format: dict[str, Any] | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, FIELDS["verbosity"]] = None


class ResponseStreamOptions(Struct, kw_only=True):
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
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[_Key, _Text], Meta(max_length=16)] | None = None
    user: Annotated[_Text | None, FIELDS["user"]] = None
    safety_identifier: Annotated[_Text | None, FIELDS["safety_identifier"]] = None
    prompt_cache_key: Annotated[_Text | None, FIELDS["prompt_cache_key"]] = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    prompt: Annotated[Any, only()] = None
