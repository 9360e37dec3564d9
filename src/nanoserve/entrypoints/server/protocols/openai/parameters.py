"""From a request body to sampling parameters; a bad value is named as the client wrote it."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.fields import (
    given_sampling,
    read_sampling,
    requested_logprobs,
)
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody, CompletionBody, GenerationBody
from nanoserve.ports.checks import check_integer, check_number
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Api
from nanoserve.ports.sampling import MAX_LOGPROBS, SamplingParams

_STRONGEST_BIAS: Final = 100.0
_LONGEST_NAME: Final = 256
_LEGACY_MAX_TOKENS: Final = 16


@attrs.frozen(kw_only=True)
class CompletionParameters:
    """What a completion body asks for, where that is not what the body says.

    Attributes:
        sampling: for the engine, which has to generate at least one token.
        prompt_logprobs: alternatives per position of the prompt, in their own field.
        drops_output: nothing was to be generated (`max_tokens: 0`).
    """

    sampling: SamplingParams
    prompt_logprobs: int | None
    drops_output: bool


def completion_parameters(body: CompletionBody, service: TextService) -> CompletionParameters:
    """Read a completion body; raises `BadValueError`."""
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
    return CompletionParameters(sampling=sampling, prompt_logprobs=prompt_logprobs, drops_output=drops_output)


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
    _check_request_id(body.request_id)
    if body.stream_options is not None and not body.stream:
        raise BadValueError("stream_options", "needs `stream: true`")
    return given


def _check_request_id(value: str | None) -> None:
    if value is None:
        return
    if len(value) > _LONGEST_NAME:
        raise BadValueError("request_id", f"may have {_LONGEST_NAME} characters, got {len(value)}")
    if not (value.isascii() and value.isprintable()):
        raise BadValueError("request_id", "takes printable ASCII characters only")


def _check_alternatives(name: str, value: int | None) -> None:
    if value is not None:
        check_integer(name, value, 0, MAX_LOGPROBS)


def _check_nothing_to_generate(given: dict[str, Any], *, echo: bool) -> None:
    if not echo:
        raise BadValueError("max_tokens", "must be at least 1; 0 needs `echo: true`")
    if given.get("min_tokens"):
        raise BadValueError("min_tokens", f"must be at most max_tokens (0), got {given['min_tokens']}")
