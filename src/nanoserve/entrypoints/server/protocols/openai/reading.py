"""From the bodies of OpenAI's endpoints to conversations and sampling parameters; a bad value is named as the client wrote it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from nanoserve.entrypoints.app.orders import Conversation
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import (
    called,
    effort_options,
    given_sampling,
    openai_tool,
    read_sampling,
    read_tools,
    requested_logprobs,
    required,
    switch_options,
    template_options,
)
from nanoserve.entrypoints.server.protocols.openai.schemas import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    TokenizeBody,
)
from nanoserve.ports.checks import check_integer, check_number
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import MAX_LOGPROBS, SamplingParams

_STRONGEST_BIAS: Final = 100.0
_LONGEST_NAME: Final = 256
_LEGACY_MAX_TOKENS: Final = 16


def read_conversation(body: ChatBody | TokenizeBody, service: TextService) -> Conversation:
    """What to render; raises `BadValueError`."""
    options: dict[str, Any] = dict(effort_options(service, body.reasoning_effort, "reasoning_effort"))
    if body.enable_thinking is not None:
        options |= switch_options(service, "enable_thinking", on=body.enable_thinking)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise BadValueError("add_generation_prompt", "is false where `continue_final_message` is true")
    if continues and body.enable_thinking:
        raise BadValueError("enable_thinking", "does not go with `continue_final_message`")
    return Conversation(
        [_message(each, f"messages[{place}]") for place, each in enumerate(body.messages or [])],
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        tools=read_tools(body.tools, service, functools.partial(openai_tool, nested=True)),
        options={**options, **template_options(service, body.chat_template_kwargs)},
    )


def completion_sampling(body: CompletionBody, service: TextService) -> tuple[SamplingParams, bool]:
    """Read a completion body's sampling parameters; raises `BadValueError`.

    True with them where nothing was to be generated (`max_tokens: 0`): an engine has to generate at least one token.
    """
    given = _check_body(body)
    if body.top_logprobs is not None:
        raise BadValueError("top_logprobs", "belongs to chat; a completion's `logprobs` is a number")
    _check_alternatives("logprobs", body.logprobs)
    max_tokens, prompt_logprobs = given.get("max_tokens"), given.get("prompt_logprobs")
    _check_alternatives("prompt_logprobs", prompt_logprobs)
    drops_output = max_tokens == 0
    if drops_output:
        _check_nothing_to_generate(given, echo=bool(body.echo))
        max_tokens = 1
    scored = prompt_logprobs
    if body.echo and body.logprobs is not None:
        scored = max(body.logprobs, prompt_logprobs or 0)
    sampling = read_sampling(
        body,
        Api.OPENAI,
        service.settings.defaults,
        max_tokens=_LEGACY_MAX_TOKENS if max_tokens is None else max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=scored,
    )
    return sampling, drops_output


def chat_sampling(body: ChatBody, service: TextService) -> SamplingParams:
    """Read a chat body's sampling parameters; raises `BadValueError`."""
    _check_body(body)
    if body.echo:
        raise BadValueError("echo", "belongs to completions; a conversation has no text to repeat")
    if body.add_special_tokens:
        raise BadValueError("add_special_tokens", "the model's chat template writes them; leave it out")
    logprobs = requested_logprobs(body.logprobs, body.top_logprobs)
    return read_sampling(body, Api.OPENAI, service.settings.defaults, logprobs=logprobs)


def _check_body(body: GenerationBody) -> dict[str, Any]:
    """What the endpoints check alike, beside what `SamplingParams` does; returns the sampling values that are given."""
    given = {name: value for name, (_, value) in given_sampling(body, Api.OPENAI).items()}
    n = given.get("n", 1)
    if body.best_of is not None and body.best_of != n:
        raise BadValueError("best_of", f"can only be equal to n ({n}), got {body.best_of}")
    for bias in given.get("logit_bias", {}).values():
        check_number("logit_bias", bias, -_STRONGEST_BIAS, _STRONGEST_BIAS)
    name = body.request_id or ""
    if len(name) > _LONGEST_NAME:
        raise BadValueError("request_id", f"may have {_LONGEST_NAME} characters, got {len(name)}")
    if not (name.isascii() and name.isprintable()):
        raise BadValueError("request_id", "takes printable ASCII characters only")
    if body.stream_options is not None and not body.stream:
        raise BadValueError("stream_options", "needs `stream: true`")
    return given


def _check_alternatives(name: str, value: int | None) -> None:
    if value is not None:
        check_integer(name, value, 0, MAX_LOGPROBS)


def _check_nothing_to_generate(given: dict[str, Any], *, echo: bool) -> None:
    if not echo:
        raise BadValueError("max_tokens", "must be at least 1; 0 needs `echo: true`")
    if given.get("min_tokens"):
        raise BadValueError("min_tokens", f"must be at most max_tokens (0), got {given['min_tokens']}")


def _message(message: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """With earlier calls of custom tools as the model knows them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = [_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return {**message, "tool_calls": changed}


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, Mapping) or call.get("type") != "custom":
        return call
    custom = required(call, "custom", dict, where)
    name, text = (required(custom, each, str, f"{where}.custom") for each in ("name", "input"))
    return {"id": call.get("id"), "type": "function", "function": called(name, text)}
