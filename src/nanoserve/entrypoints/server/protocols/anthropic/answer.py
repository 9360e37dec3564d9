"""The answers of `/v1/messages` on the wire, and its errors."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from nanoserve.entrypoints.server.http.errors import Problem

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


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
    """What went wrong; the message names the field at fault, and `details` are for programs."""

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
        return cls(
            error=AnthropicErrorDetail(_ERROR_TYPES.get(problem.status, other), problem.message, details)
        )


class TextBlock(Struct, kw_only=True, tag_field="type", tag="text"):
    """Generated text."""

    text: str


class ThinkingBlock(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought; the signature tells nothing, and any is taken back."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageTokensDetails(Struct):
    """How many of the generated tokens were thinking."""

    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """What it cost, in tokens; the prompt's are those read from the cache and the others."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: MessageTokensDetails | UnsetType = UNSET


class AppliedEdit(Struct, kw_only=True):
    """What was left out of the prompt."""

    type: str
    cleared_input_tokens: int
    cleared_tool_uses: int | UnsetType = UNSET
    cleared_thinking_turns: int | UnsetType = UNSET


class ManagedContext(Struct):
    """All that was left out."""

    applied_edits: list[AppliedEdit]


class Message(Struct, kw_only=True):
    """What the model said."""

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
