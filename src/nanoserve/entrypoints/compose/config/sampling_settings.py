"""The fields of `SamplingParams` as settings. Ranges are checked by `SamplingParams` itself, once all sources are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import Boolean, Integer, Kind, Number, Optional
from nanoserve.entrypoints.compose.config.list_kinds import Strings, TokenBiases, TokenIds
from nanoserve.entrypoints.compose.config.setting import Setting, Sourced
from nanoserve.ports import parameter
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS, SamplingParams, set_by

DEFAULT_MAX_TOKENS: Final = 256
"""The command line's own default: people who type a prompt want to read more than 16 tokens."""

_KINDS: Final[Mapping[parameter.Kind, Kind]] = {
    parameter.Kind.NUMBER: Number(),
    parameter.Kind.INTEGER: Integer(),
    parameter.Kind.SWITCH: Boolean(),
    parameter.Kind.TEXTS: Strings(),
    parameter.Kind.TOKEN_IDS: TokenIds(),
    parameter.Kind.BIASES: TokenBiases(),
}


def _setting(declared: parameter.Parameter) -> Setting:
    kind = _KINDS[declared.kind]
    return Setting(
        name=declared.name,
        table="sampling",
        kind=Optional(kind, "none") if declared.optional else kind,
        default=DEFAULT_MAX_TOKENS if declared.name == "max_tokens" else declared.default,
        summary=declared.meaning,
    )


SAMPLING_SETTINGS: Final[tuple[Setting, ...]] = tuple(map(_setting, PARAMETERS.values()))


def sampling_settings(door: parameter.Door, **defaults: Any) -> tuple[Setting, ...]:
    """The settings that a command offers, some of them with defaults of its own."""
    offered = [each for each in SAMPLING_SETTINGS if each.name in set_by(door)]
    return tuple(attrs.evolve(each, default=defaults.get(each.name, each.default)) for each in offered)


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
    read = {
        name: Sourced(known[name].read(value, origin, text=False), origin) for name, value in fields.items()
    }
    kept = {name: Sourced(getattr(sampling, name), "the command") for name in PARAMETERS.keys() - read.keys()}
    return merge_sampling(kept | read)
