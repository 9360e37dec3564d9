"""The answer of `/v1/responses` on the wire: the response object, whose output are items, and what it cost."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(Struct):
    """How many prompt tokens the prefix cache held; what is written to it is not metered."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ResponseTokensDetails(Struct):
    """How many of the generated tokens were reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    """What the response cost, in tokens."""

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
    """What the text had to be."""

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


class Deleted(Struct, kw_only=True):
    """A stored response is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(Struct, kw_only=True):
    """One page of the conversation that a response answered."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
