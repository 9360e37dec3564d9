"""The answer of `/v1/responses` on the wire: the response object, its one message, and what it cost."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from nanoserve.entrypoints.server.http.logprobs import ChosenToken

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, kw_only=True):
    """Generated text."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[str] = field(default_factory=list)
    logprobs: list[ChosenToken] = field(default_factory=list)


class InputText(Struct, kw_only=True):
    """Text that was sent."""

    type: Literal["input_text"] = "input_text"
    text: str


class OutputMessage(Struct, kw_only=True):
    """The answer of the model."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class InputMessage(Struct, kw_only=True):
    """A message to the model."""

    id: str
    type: Literal["message"] = "message"
    role: str
    status: Literal["completed"] = "completed"
    content: list[InputText]


class ReasoningText(Struct, kw_only=True):
    """What the model thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(Struct, kw_only=True):
    """A part of the answer that is reasoning; it comes as it is, so there is no summary of it."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[str] = field(default_factory=list)
    content: list[ReasoningText]
    encrypted_content: None = None


class FunctionCall(Struct, kw_only=True):
    """A call of a tool; `arguments` are the text of a JSON object."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CustomToolCall(Struct, kw_only=True):
    """A call of a custom tool, with the text for it."""

    id: str
    type: Literal["custom_tool_call"] = "custom_tool_call"
    status: ItemStatus
    call_id: str
    name: str
    input: str


class CallOutput(Struct, kw_only=True):
    """What a tool said."""

    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: Literal["completed"] = "completed"
    call_id: str
    output: str


OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall


class InputTokensDetails(Struct):
    """How many prompt tokens the prefix cache held; what is written to it is not metered."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    """How many of the generated tokens were reasoning."""

    reasoning_tokens: int = 0


class Usage(Struct, kw_only=True):
    """What the response cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)
    total_tokens: int


class Failure(Struct, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
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
    output: list[Any] = field(
        default_factory=list
    )  # of `OutputItem`; msgspec describes no union of untagged structs
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
    usage: Usage | None = None
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
    data: list[Any]  # input and output messages; msgspec describes no union of untagged structs
    first_id: str | None
    last_id: str | None
    has_more: bool
