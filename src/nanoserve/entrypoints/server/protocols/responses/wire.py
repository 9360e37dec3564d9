"""The body of `/v1/responses`, with this server's own sampling fields, and its answer: the response object, whose output are items."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from nanoserve.entrypoints.server.http.field_support import (
    EARLIER,
    FIELDS,
    harmless,
    only,
    sampling_body,
    taking,
)
from nanoserve.ports.sampling import Api


class InputPart(Struct, kw_only=True):
    """A part of a message; only text is understood."""

    type: str
    text: str | None = None

    annotations: Annotated[Any, EARLIER] = None
    logprobs: Annotated[Any, EARLIER] = None
    prompt_cache_breakpoint: Annotated[Any, FIELDS["prompt_cache_options"]] = None


@taking("summary encrypted_content namespace caller", EARLIER)
class InputItem(Struct, kw_only=True):
    """A message, a call of a tool, a tool's result, or reasoning; other kinds of items are refused by their type."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None

    id: Annotated[str | None, EARLIER] = None
    status: Annotated[str | None, EARLIER] = None
    phase: Annotated[str | None, EARLIER] = None
    async_: Annotated[Any, EARLIER] = field(default=None, name="async")


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
    """The format that the text must have."""

    format: dict[str, Any] | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, FIELDS["verbosity"]] = None


class ResponseStreamOptions(Struct, kw_only=True):
    """Streams carry no padding against observers of their sizes."""

    include_obfuscation: Annotated[bool, only(False)] = False


@sampling_body(Api.RESPONSES)
class CreateResponse(Struct, kw_only=True):
    """The body of a request for an answer."""

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


FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(Struct):
    """The number of prompt tokens found in the prefix cache; writes to it are not metered."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseTokensDetails(Struct):
    """The number of generated tokens that were reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    """The cost of the response, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ResponseTokensDetails = field(default_factory=ResponseTokensDetails)
    total_tokens: int


class Failure(Struct, kw_only=True):
    """Why a response failed."""

    code: FailureCode
    message: str


class IncompleteDetails(Struct):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Reasoning(Struct):
    """How hard the model was to reason; null where that was left to it."""

    effort: str | None = None
    summary: None = None


class TextSettings(Struct):
    """The format that the text had to have."""

    format: dict[str, Any] = field(default_factory=lambda: {"type": "text"})


class ResponseObject(Struct, kw_only=True):
    """A response at one moment; the parameters are those that were used, defaults of the model included."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[Any] = field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = True
    temperature: float
    text: TextSettings = field(default_factory=TextSettings)
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = field(default_factory=list)
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class InputTokens(Struct, kw_only=True):
    """The tokens of a prompt that nothing has answered yet."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Deleted(Struct, kw_only=True):
    """A stored response is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
