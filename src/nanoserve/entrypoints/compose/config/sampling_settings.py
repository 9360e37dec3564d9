"""The fields of `SamplingParams` as settings. Ranges are checked by `SamplingParams` itself, once all sources are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from nanoserve.ports import parameter
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS, SamplingParams, set_by

DEFAULT_MAX_TOKENS: Final = 256
"""The command line's own default: people who type a prompt want to read more than 16 tokens."""

_KINDS: Final[Mapping[parameter.Kind, Kind]] = {
    parameter.Kind.NUMBER: number(),
    parameter.Kind.INTEGER: integer(),
    parameter.Kind.SWITCH: boolean(),
    parameter.Kind.TEXTS: texts(),
    parameter.Kind.TOKEN_IDS: token_ids(),
    parameter.Kind.BIASES: token_biases(),
}


def _setting(declared: parameter.Parameter) -> Setting:
    kind = _KINDS[declared.kind]
    return Setting(
        name=declared.name,
        table="sampling",
        kind=or_none(kind, "none") if declared.optional else kind,
        default=DEFAULT_MAX_TOKENS if declared.name == "max_tokens" else declared.default,
        summary=f"{declared.meaning}{' Repeatable.' if declared.kind is parameter.Kind.TEXTS else ''}",
    )


SAMPLING_SETTINGS: Final[tuple[Setting, ...]] = tuple(map(_setting, PARAMETERS.values()))


def sampling_settings(door: parameter.Door) -> tuple[Setting, ...]:
    """The settings that a command offers."""
    return tuple(each for each in SAMPLING_SETTINGS if each.name in set_by(door))


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
    kept = {name: Sourced(getattr(sampling, name), "the command") for name in PARAMETERS.keys() - read.keys()}
    return merge_sampling(kept | read)
