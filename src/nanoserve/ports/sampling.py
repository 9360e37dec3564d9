"""How a client asks for tokens: `SamplingParams`, named and shaped as in vLLM's offline interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from nanoserve.ports.checks import (
    check_integer,
    check_number,
    check_switch,
    check_texts,
    check_token_ids,
    shown,
)
from nanoserve.ports.errors import BadValueError

MAX_SEQUENCES_PER_REQUEST = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 2**14
_MOST = 2**31 - 1


def _stop(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return _strings("stop", value)


def _bad_words(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return _strings("bad_words", value)


def _stop_token_ids(value: Iterable[int] | None) -> tuple[int, ...]:
    return _items("stop_token_ids", value, "a list of token ids")


def _allowed_token_ids(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else _items("allowed_token_ids", value, "a list of token ids")


def _strings(name: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _items(name, value, "a string or a list of strings")


def _items(name: str, value: Iterable[Any] | None, wanted: str) -> tuple[Any, ...]:
    try:
        return () if value is None else tuple(value)
    except TypeError:
        raise BadValueError(name, f"takes {wanted}, got {shown(value)}") from None


def _bias(
    value: Mapping[int, float] | Iterable[tuple[int, float]] | None,
) -> tuple[tuple[int, float], ...]:
    """Pairs sorted by token; JSON's keys are strings, so strings of digits are ids too."""
    wanted = "must map token ids to numbers"
    try:
        pairs = [
            (token, bias) for token, bias in (value.items() if isinstance(value, Mapping) else value or ())
        ]
        read = [(int(token) if isinstance(token, str) else token, bias) for token, bias in pairs]
    except (TypeError, ValueError):
        raise BadValueError("logit_bias", f"{wanted}, got {shown(value)}") from None
    check_token_ids("logit_bias", (token for token, _ in read))
    for _, bias in read:
        check_number("logit_bias", bias, -1e9, 1e9)
    return tuple(sorted((token, float(bias)) for token, bias in read))


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
    stop: tuple[str, ...] = attrs.field(default=(), converter=_stop)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_stop_token_ids)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_bias)
    allowed_token_ids: tuple[int, ...] | None = attrs.field(default=None, converter=_allowed_token_ids)
    bad_words: tuple[str, ...] = attrs.field(default=(), converter=_bad_words)
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __attrs_post_init__(self) -> None:
        _check_numbers(self)
        _check_counts(self)
        _check_lists(self)
        _check_switches(self)


def _check_numbers(params: SamplingParams) -> None:
    check_number("temperature", params.temperature, 0.0, 100.0)
    check_number("top_p", params.top_p, 0.0, 1.0, open_low=True)
    check_number("min_p", params.min_p, 0.0, 1.0)
    check_number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    check_number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    check_number("repetition_penalty", params.repetition_penalty, 0.0, 100.0, open_low=True)


def _check_counts(params: SamplingParams) -> None:
    check_integer("top_k", params.top_k, -1, _MOST)
    check_integer("n", params.n, 1, MAX_SEQUENCES_PER_REQUEST)
    check_integer("min_tokens", params.min_tokens, 0, _MOST)
    optional = {
        "seed": (-(2**63), 2**64 - 1),
        "max_tokens": (1, _MOST),
        "logprobs": (0, MAX_LOGPROBS),
        "prompt_logprobs": (0, MAX_LOGPROBS),
    }
    for name, (low, high) in optional.items():
        if (value := getattr(params, name)) is not None:
            check_integer(name, value, low, high)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        message = f"must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}"
        raise BadValueError("min_tokens", message)


def _check_switches(params: SamplingParams) -> None:
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
        check_switch(name, getattr(params, name))
    if params.stop and not params.detokenize:
        raise BadValueError("stop", "stop strings need detokenize=True")


def _check_lists(params: SamplingParams) -> None:
    check_texts("stop", params.stop, MAX_STOP_STRINGS, MAX_STOP_CHARACTERS)
    check_texts("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS)
    check_token_ids("stop_token_ids", params.stop_token_ids)
    if params.allowed_token_ids is not None:
        check_token_ids("allowed_token_ids", params.allowed_token_ids)
        if not params.allowed_token_ids:
            raise BadValueError("allowed_token_ids", "must not be empty: nothing could be sampled")
