"""From the body of `POST /v1/responses` to prompts and sampling parameters; every field is honoured or refused."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.field_support import refuse_unsupported
from nanoserve.entrypoints.server.http.fields import (
    custom_tool,
    effort_options,
    function_tool,
    openai_choice,
    read_sampling,
    read_tools,
)
from nanoserve.entrypoints.server.protocols.responses.body import CreateResponse
from nanoserve.ports.checks import check_integer, shown
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import MAX_LOGPROBS, SamplingParams
from nanoserve.ports.tool_calls import Tool, ToolChoice

INCLUDE_LOGPROBS: Final = "message.output_text.logprobs"
INCLUDES: Final = (
    INCLUDE_LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    *("web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
)
"""All but the first add nothing: reasoning has its text in the open, and items of the others do not occur."""
SKIPPED_TOOLS: Final = (
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    *("file_search", "tool_search", "code_interpreter", "programmatic_tool_calling", "image_generation"),
    *("computer", "computer_use_preview", "shell", "local_shell", "apply_patch", "mcp", "namespace"),
)
"""Types of tools that the provider runs, or that its own models alone can call."""

_MOST_METADATA: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512


def check_fields(body: CreateResponse) -> None:
    """Refuse what is not supported, by name, and values out of their bounds."""
    refuse_unsupported(body)
    for name in body.include or ():
        if name not in INCLUDES:
            raise BadValueError("include", f"must be of {', '.join(INCLUDES)}, got {shown(name)}")
    if body.max_tool_calls is not None:
        check_integer("max_tool_calls", body.max_tool_calls, low=1)
    if body.background and body.store is False:
        raise BadValueError("background", "needs store: the answer is fetched later")
    if body.background and body.stream:
        raise BadValueError("background", "cannot be streamed here; fetch the response until it is done")
    _check_metadata(body.metadata or {})
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        if len(getattr(body, name) or "") > _LONGEST_VALUE:
            raise BadValueError(name, f"takes at most {_LONGEST_VALUE} characters")


def read_response_sampling(body: CreateResponse, defaults: Mapping[str, Any]) -> SamplingParams:
    """What to sample; `top_logprobs` asks for log-probabilities as `include` does."""
    wants_logprobs = body.top_logprobs is not None or INCLUDE_LOGPROBS in (body.include or ())
    if body.top_logprobs is not None:
        check_integer("top_logprobs", body.top_logprobs, 0, MAX_LOGPROBS)
    logprobs = (body.top_logprobs or 0) if wants_logprobs else None
    return read_sampling(body, Api.RESPONSES, defaults, logprobs=logprobs)


def read_conversation(
    body: CreateResponse, messages: Sequence[Message], service: TextService
) -> Conversation:
    """What to render; raises `BadValueError`."""
    effort = None if body.reasoning is None else body.reasoning.effort
    return Conversation(
        messages,
        tools=read_tools(offered_tools(body), service, _tool),
        options=effort_options(service, effort, "reasoning.effort"),
    )


def offered_tools(body: CreateResponse) -> list[dict[str, Any]]:
    """The tools that the model is told of: without those that neither this server nor the client could run."""
    skipped = frozenset(str(each["type"]) for each in body.tools or () if each.get("type") in SKIPPED_TOOLS)
    if skipped:
        _say_skipped(skipped)
    return [each for each in body.tools or () if each.get("type") not in SKIPPED_TOOLS]


@functools.cache
def _say_skipped(types: frozenset[str]) -> None:
    """Once for each selection of them."""
    structlog.get_logger().warning("tools of these types are left out of requests", types=sorted(types))


def read_choice(body: CreateResponse, tools: tuple[Tool, ...]) -> ToolChoice:
    """Which of the tools are called; raises `BadValueError`."""
    return openai_choice(body.tool_choice, tools, body.parallel_tool_calls)


def _tool(given: Mapping[str, Any], where: str) -> Tool:
    kind = given.get("type")
    if kind not in ("function", "custom"):
        raise BadValueError(f"{where}.type", f"must be function or custom, got {shown(kind)}")
    return custom_tool(given, where) if kind == "custom" else function_tool(given, where)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MOST_METADATA:
        raise BadValueError("metadata", f"takes at most {_MOST_METADATA} pairs, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            message = (
                f"takes keys of at most {_LONGEST_KEY} and values of at most {_LONGEST_VALUE} characters"
            )
            raise BadValueError("metadata", message)
