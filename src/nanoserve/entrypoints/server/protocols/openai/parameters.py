"""From a request body to sampling parameters; a bad value is named as the client wrote it."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.text_service import TextService, sampling_from
from nanoserve.entrypoints.server.protocols.openai.schemas import ChatBody, CompletionBody, GenerationBody
from nanoserve.entrypoints.server.protocols.openai.unsupported import refuse_unsupported
from nanoserve.ports.checks import check_integer, check_number
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import MAX_LOGPROBS, SamplingParams

_STRONGEST_BIAS: Final = 100.0
_LONGEST_NAME: Final = 256
_LEGACY_MAX_TOKENS: Final = 16
_SAME_NAME: Final = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "skip_special_tokens",
)


@attrs.frozen(kw_only=True)
class CompletionWishes:
    """What a completion request asks for.

    Attributes:
        sampling: for the engine, which has to generate at least one token.
        echo: whether the answer begins with the prompt.
        logprobs: alternatives per position of the answer; None for no log-probabilities.
        prompt_logprobs: alternatives per position of the prompt, in their own field.
        drops_output: nothing was to be generated (`max_tokens: 0`).
        return_token_ids: whether ids are reported beside the text.
        return_timings: whether an answer says where its time went.
    """

    sampling: SamplingParams
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    drops_output: bool
    return_token_ids: bool
    return_timings: bool


def completion_wishes(body: CompletionBody, service: TextService) -> CompletionWishes:
    """Read a completion body; raises `BadValueError`."""
    check_body(body)
    if body.top_logprobs is not None:
        raise BadValueError("top_logprobs", "belongs to chat; a completion's `logprobs` is a number")
    _check_alternatives("logprobs", body.logprobs)
    _check_alternatives("prompt_logprobs", body.prompt_logprobs)
    echo, max_tokens = bool(body.echo), _max_tokens(body)
    drops_output = max_tokens == 0
    if drops_output:
        _check_nothing_to_generate(body, echo=echo)
        max_tokens = 1
    values = _values(body)
    values["max_tokens"] = _LEGACY_MAX_TOKENS if max_tokens is None else max_tokens
    values["logprobs"] = body.logprobs
    if echo and body.logprobs is not None:
        values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return CompletionWishes(
        sampling=sampling_from(service.defaults, values),
        echo=echo,
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        drops_output=drops_output,
        return_token_ids=bool(body.return_token_ids),
        return_timings=bool(body.return_timings),
    )


def chat_sampling(body: ChatBody, service: TextService) -> SamplingParams:
    """Read a chat body's sampling parameters; raises `BadValueError`."""
    check_body(body)
    if body.echo:
        raise BadValueError("echo", "belongs to completions; a conversation has no text to repeat")
    if body.add_special_tokens:
        raise BadValueError("add_special_tokens", "the model's chat template writes them; leave it out")
    _check_alternatives("top_logprobs", body.top_logprobs)
    _check_alternatives("prompt_logprobs", body.prompt_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise BadValueError("top_logprobs", "needs `logprobs: true`")
    values = _values(body)
    max_tokens = _max_tokens(body)
    if max_tokens is not None:
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        check_integer(name, max_tokens, 1)
    values["max_tokens"] = max_tokens
    values["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_from(service.defaults, values)


def check_body(body: GenerationBody) -> None:
    """What the endpoints check alike, beside what `SamplingParams` does."""
    refuse_unsupported(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadValueError("best_of", f"can only be equal to n ({body.n or 1}), got {body.best_of}")
    for bias in (body.logit_bias or {}).values():
        check_number("logit_bias", bias, -_STRONGEST_BIAS, _STRONGEST_BIAS)
    for name in ("user", "safety_identifier", "prompt_cache_key", "cache_salt", "request_id"):
        _check_name(name, getattr(body, name))
    _check_stream_options(body)


def _check_stream_options(body: GenerationBody) -> None:
    options = body.stream_options
    if options is None:
        return
    if not body.stream:
        raise BadValueError("stream_options", "needs `stream: true`")
    if options.include_obfuscation:
        raise BadValueError("stream_options.include_obfuscation", "is not supported by this server")


def _check_name(name: str, value: str | None) -> None:
    if value is None:
        return
    if len(value) > _LONGEST_NAME:
        raise BadValueError(name, f"may have {_LONGEST_NAME} characters, got {len(value)}")
    if name == "request_id" and not (value.isascii() and value.isprintable()):
        raise BadValueError(name, "takes printable ASCII characters only")


def _check_alternatives(name: str, value: int | None) -> None:
    if value is not None:
        check_integer(name, value, 0, MAX_LOGPROBS)


def _check_nothing_to_generate(body: CompletionBody, *, echo: bool) -> None:
    if not echo:
        raise BadValueError("max_tokens", "must be at least 1; 0 needs `echo: true`")
    if body.min_tokens:
        raise BadValueError("min_tokens", f"must be at most max_tokens (0), got {body.min_tokens}")


def _max_tokens(body: GenerationBody) -> int | None:
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        raise BadValueError("max_completion_tokens", f"{newer} contradicts max_tokens, which is {older}")
    return older if newer is None else newer


def _values(body: GenerationBody) -> dict[str, Any]:
    return {name: getattr(body, name) for name in _SAME_NAME}
