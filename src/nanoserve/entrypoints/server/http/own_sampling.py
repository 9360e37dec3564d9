"""Sampling fields that this server adds to protocols that lack them, and how a request's fields become parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from nanoserve.entrypoints.server.http.field_support import renamed
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams


class OwnSampling(Struct, kw_only=True):
    """Fields of `SamplingParams` under their own names; None takes the model's default.

    The last seven belong to other endpoints and are refused unless they hold what is the case anyway.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    priority: int = 0
    cache_salt: str = ""
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_timings: bool | None = None
    request_id: str | None = None


LONGEST_SALT: Final = 256
OWN_REFUSALS: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "prompt_logprobs": (None,),
    "return_token_ids": (None, False),
    "return_timings": (None, False),
    "request_id": (None,),
}
_ELSEWHERE: Final = {"priority", "cache_salt", *OWN_REFUSALS}
_NAMES: Final = tuple(name for name in OwnSampling.__struct_fields__ if name not in _ELSEWHERE)


def sampling_params(
    asked: OwnSampling,
    defaults: Mapping[str, Any],
    *,
    wire_names: Mapping[str, str],
    **more: Any,
) -> SamplingParams:
    """What to sample, with the model's defaults where the request says nothing.

    Args:
        asked: the request.
        defaults: of the model.
        wire_names: what the protocol calls a parameter, where its name differs; errors use it.
        more: values of parameters that `OwnSampling` has no field for; None counts as not given.
    """
    if len(asked.cache_salt) > LONGEST_SALT:
        raise BadValueError("cache_salt", f"may have {LONGEST_SALT} characters, got {len(asked.cache_salt)}")
    given = {name: getattr(asked, name) for name in _NAMES} | more
    told = {name: value for name, value in given.items() if value is not None}
    try:
        return SamplingParams(**{"max_tokens": None, **defaults, **told})
    except BadValueError as error:
        raise renamed(error, wire_names.get(error.parameter, error.parameter)) from None
