"""The bodies of `/v1/messages`, with this server's own sampling fields, its answers, and its errors."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from nanoserve.entrypoints.server.http.errors import Problem
from nanoserve.entrypoints.server.http.field_support import (
    EARLIER,
    FIELDS,
    harmless,
    only,
    refusing,
    sampling_body,
    taking,
)
from nanoserve.ports.sampling import Api


@taking("citations signature data caller toolset_name", EARLIER)
class ContentBlock(Struct, kw_only=True, omit_defaults=True):
    """A part of a message: text, a tool's result, or the thinking and calls of an earlier answer."""

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
    """Thinking on or off; `budget_tokens` bounds it, `display: omitted` leaves its text out of the answer."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None
    block_binding: Annotated[Any, harmless("what was thought is taken back unchecked")] = None


class OutputConfig(Struct, kw_only=True):
    """The effort of thinking, and the format of the text."""

    effort: str | None = None
    format: dict[str, Any] | None = None
    task_budget: Annotated[Any, only()] = None


class Amount(Struct, kw_only=True):
    """So many of something."""

    type: str
    value: Annotated[int, Meta(ge=0)] | None = None


class Edit(Struct, kw_only=True):
    """A rule for shortening a long conversation; its type says which fields it has."""

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
    """The wish that the server keeps the conversation from here on, or continues with one that it has kept."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


@refusing
class CountTokens(Struct, kw_only=True):
    """The body of a request to count tokens."""

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
    """The body of a request for an answer."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thread: ThreadParam | None = None
    metadata: Annotated[Metadata | None, FIELDS["metadata"]] = None


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"]


_ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorDetail(Struct):
    """The error; the message names the field at fault, and `details` are for programs."""

    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET


class AnthropicError(Struct, kw_only=True):
    """The body of every answer that is not a success, and the event of a stream that broke."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail

    @classmethod
    def of(cls, problem: Problem) -> AnthropicError:
        """The type says less than the problem's status."""
        other = "invalid_request_error" if problem.status < 500 else "api_error"
        code = problem.code or ""
        details = {"error_code": code} if code.startswith("thread_") else UNSET
        message = _too_long(problem) if code == "context_length_exceeded" else problem.message
        return cls(error=AnthropicErrorDetail(_ERROR_TYPES.get(problem.status, other), message, details))


def _too_long(problem: Problem) -> str:
    """Anthropic's words, which its clients read: they shorten the conversation, or ask again for as many tokens as there is room for."""
    if problem.sizes is None:
        return f"prompt is too long: {problem.message}"
    prompt, answer, most = problem.sizes
    if prompt >= most:
        return f"prompt is too long: {prompt} tokens > {most} maximum"
    sum_of = f"{prompt} + {answer} > {most}, decrease input length or `max_tokens` and try again"
    return f"input length and `max_tokens` exceed context limit: {sum_of}"


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text"):
    """Generated text."""

    text: str


class ThinkingBlock(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The model's thoughts; the signature tells nothing, and any is taken back."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageTokensDetails(Struct):
    """The number of generated tokens that were thinking."""

    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """The cost in tokens; the prompt's are those read from the cache and the others."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: MessageTokensDetails | UnsetType = UNSET


class AppliedEdit(Struct, kw_only=True):
    """The part that was left out of the prompt."""

    type: str
    cleared_input_tokens: int
    cleared_tool_uses: int | UnsetType = UNSET
    cleared_thinking_turns: int | UnsetType = UNSET


class ManagedContext(Struct):
    """All that was left out."""

    applied_edits: list[AppliedEdit]


class Message(Struct, kw_only=True):
    """The model's answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    context_management: ManagedContext | UnsetType = UNSET


class TokenCount(Struct):
    """The length of a prompt, and before edits of its context where they are asked for."""

    input_tokens: int
    context_management: dict[str, int] | UnsetType = UNSET
