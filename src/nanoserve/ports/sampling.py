"""How a client asks for tokens: `SamplingParams`, named and shaped as in vLLM's offline interface."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from nanoserve.ports.errors import BadValueError

MAX_SEQUENCES_PER_REQUEST = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64


def _strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _ids(value: Iterable[int] | None) -> tuple[int, ...]:
    return () if value is None else tuple(value)


def _optional_ids(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _bias(value: Mapping[int, float] | Iterable[tuple[int, float]] | None) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    items = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((int(token), float(bias)) for token, bias in items))


@attrs.frozen(kw_only=True)
class SamplingParams:
    """What to generate and when to stop. Checked on creation: a bad value raises `BadValueError`.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it before sampling.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches p, the crossing token included.
        min_p: keep tokens at least this fraction as likely as the most likely one.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence in the output (OpenAI's law).
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or
            output (CTRL, Keskar et al. 2019).
        seed: makes the output a function of the request alone; None lets the entry point draw one.
        n: how many sequences to generate from the prompt.
        max_tokens: the most tokens to generate for each; None means up to the context length.
        min_tokens: end-of-sequence and stop tokens are not sampled before this many tokens.
        stop: strings that end generation; not part of the text unless `include_stop_str_in_output`.
        stop_token_ids: token ids that end generation, beside the model's own end-of-sequence ids.
        logprobs, prompt_logprobs: how many of the likeliest tokens to report at each position; 0 reports
            the actual token alone.
        logit_bias: added to the logits, by token id.
        allowed_token_ids: if given, every other token is excluded.
        bad_words: texts that are never completed.
        detokenize: False leaves the text empty (and refuses stop strings), for callers that want ids only.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_ids)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_bias)
    allowed_token_ids: tuple[int, ...] | None = attrs.field(default=None, converter=_optional_ids)
    bad_words: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __attrs_post_init__(self) -> None:
        _check_numbers(self)
        _check_counts(self)
        _check_lists(self)


def _number(params: SamplingParams, name: str, low: float, high: float, *, open_low: bool = False) -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadValueError(name, f"must be a finite number, got {value!r}")
    if not low <= value <= high or (open_low and value == low):
        left = "(" if open_low else "["
        raise BadValueError(name, f"must be in {left}{low:g}, {high:g}], got {value!r}")


def _count(params: SamplingParams, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValueError(name, f"must be an integer, got {value!r}")
    if not low <= value <= high:
        raise BadValueError(name, f"must be from {low} to {high}, got {value}")


def _check_numbers(params: SamplingParams) -> None:
    _number(params, "temperature", 0.0, 100.0)
    _number(params, "top_p", 0.0, 1.0, open_low=True)
    _number(params, "min_p", 0.0, 1.0)
    _number(params, "presence_penalty", -2.0, 2.0)
    _number(params, "frequency_penalty", -2.0, 2.0)
    _number(params, "repetition_penalty", 0.0, 100.0, open_low=True)


def _check_counts(params: SamplingParams) -> None:
    most = 2**31 - 1
    _count(params, "top_k", -1, most)
    _count(params, "seed", -(2**63), 2**64 - 1, optional=True)
    _count(params, "n", 1, MAX_SEQUENCES_PER_REQUEST)
    _count(params, "max_tokens", 1, most, optional=True)
    _count(params, "min_tokens", 0, most)
    _count(params, "logprobs", 0, MAX_LOGPROBS, optional=True)
    _count(params, "prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise BadValueError(
            "min_tokens", f"must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}"
        )


def _check_lists(params: SamplingParams) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise BadValueError("stop", f"takes at most {MAX_STOP_STRINGS} strings, got {len(params.stop)}")
    for name in ("stop", "bad_words"):
        for text in getattr(params, name):
            if not isinstance(text, str) or not text:
                raise BadValueError(name, f"takes non-empty strings, got {text!r}")
    if params.stop and not params.detokenize:
        raise BadValueError("stop", "stop strings need detokenize=True")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise BadValueError("allowed_token_ids", "must not be empty: nothing could be sampled")
    for token, bias in params.logit_bias:
        if not math.isfinite(bias):
            raise BadValueError("logit_bias", f"must be finite, got {bias!r} for token {token}")
    _check_ids("stop_token_ids", params.stop_token_ids)
    _check_ids("allowed_token_ids", params.allowed_token_ids or ())
    _check_ids("logit_bias", [token for token, _ in params.logit_bias])


def _check_ids(name: str, ids: Iterable[Any]) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise BadValueError(name, f"takes token ids from 0, got {token!r}")
