"""The fields of `SamplingParams` as settings. Ranges are checked by `SamplingParams` itself, once all sources are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import (
    Kind,
    boolean,
    integer,
    number,
    or_none,
    texts,
    token_biases,
    token_ids,
)
from nanoserve.entrypoints.compose.config.setting import Setting, Sourced
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams

DEFAULT_MAX_TOKENS: Final = 256
"""The command line's own default: people who type a prompt want to read more than 16 tokens."""

_DECLARED: Final[Mapping[str, tuple[Kind, str]]] = {
    "max_tokens": (
        or_none(integer(), "none"),
        "The most tokens to generate; none goes on up to the context length.",
    ),
    "temperature": (number(), "0 is greedy; higher is more random."),
    "top_p": (number(), "Sample from the likeliest tokens whose mass reaches this."),
    "top_k": (integer(), "Sample from this many of the likeliest tokens; 0 takes all."),
    "min_p": (number(), "Sample from tokens at least this fraction as likely as the likeliest."),
    "seed": (or_none(integer(), "none"), "Makes the answer reproducible."),
    "n": (integer(), "Answers per prompt."),
    "stop": (texts(), "A text that ends the answer; repeatable."),
    "stop_token_ids": (token_ids(), "Token ids that end the answer."),
    "include_stop_str_in_output": (boolean(), "Keep the stop text in the answer."),
    "ignore_eos": (boolean(), "Go on after the model's end-of-sequence token."),
    "min_tokens": (integer(), "The fewest tokens to generate."),
    "presence_penalty": (number(), "Subtracted from the logits of tokens that the answer already has."),
    "frequency_penalty": (number(), "Subtracted once per occurrence in the answer."),
    "repetition_penalty": (number(), "Divides the logits of tokens seen in prompt or answer."),
    "logit_bias": (token_biases(), "Added to the logits of some tokens."),
    "allowed_token_ids": (or_none(token_ids(), "none"), "Generate only these tokens."),
    "bad_words": (texts(), "A text that is never completed; repeatable."),
    "logprobs": (
        or_none(integer(), "none"),
        "Report log-probabilities of each token and this many of the likeliest.",
    ),
    "prompt_logprobs": (or_none(integer(), "none"), "The same for the prompt's tokens."),
    "skip_special_tokens": (boolean(), "Leave special tokens out of the text."),
    "detokenize": (boolean(), "Turn tokens into text at all."),
}


def _default(name: str) -> Any:
    if name == "max_tokens":
        return DEFAULT_MAX_TOKENS
    return getattr(SamplingParams(), name)


SAMPLING_SETTINGS: Final[tuple[Setting, ...]] = tuple(
    Setting(name=name, table="sampling", kind=kind, default=_default(name), summary=summary)
    for name, (kind, summary) in _DECLARED.items()
)
FIELDS: Final = frozenset(field.name for field in attrs.fields(SamplingParams))


def merge_sampling(values: Mapping[str, Sourced]) -> SamplingParams:
    """Build `SamplingParams`; a bad value raises `BadValueError` that also names its origin."""
    try:
        return SamplingParams(**{name: sourced.value for name, sourced in values.items()})
    except BadValueError as error:
        if error.parameter not in values:
            raise
        message = str(error).removeprefix(f"{error.parameter}: ")
        raise BadValueError(error.parameter, f"{message} (from {values[error.parameter].origin})") from None


def override_sampling(sampling: SamplingParams, fields: Mapping[str, Any], origin: str) -> SamplingParams:
    """`sampling` with some fields replaced by values from `origin`, such as one line of a file."""
    known = {each.name: each for each in SAMPLING_SETTINGS}
    read = {name: known[name].read(value, origin, text=False) for name, value in fields.items()}
    kept = {name: Sourced(getattr(sampling, name), "the command") for name in FIELDS - read.keys()}
    return merge_sampling(kept | read)
