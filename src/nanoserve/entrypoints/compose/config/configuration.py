"""Merges the sources of settings: flags, then the environment, then the TOML file, then the model, then defaults."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs

from nanoserve.entrypoints.compose.config import command_settings as command
from nanoserve.entrypoints.compose.config import kinds
from nanoserve.entrypoints.compose.config import serve_settings as server
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.setting import Setting, Sourced, load_extensions, read_toml
from nanoserve.ports import sampling
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS, SamplingParams, set_by

CONFIG_VARIABLE: Final = "NANOSERVE_CONFIG"
TABLES: Final[Mapping[str, Sequence[type[attrs.AttrsInstance]]]] = {
    "": (EngineSettings, command.LogSettings, command.TraceSettings, command.AnswerSettings),
    "generate": (command.GenerateSettings,),
    "verify": (command.VerifySettings,),
    "bench": (command.BenchSettings,),
    "client": (command.ClientSettings,),
    "bench_serve": (command.ServeBenchSettings,),
    "serve": (
        *(server.ListenSettings, server.AccessSettings, server.BoundSettings),
        *(server.WatchSettings, server.BatchSettings),
    ),
}
"""The classes of settings that are nanoserve's own, by their TOML table."""
_TABLE_OF: Final = {each: table for table, classes in TABLES.items() for each in classes}
EXTENSIONS: Final = "nanoserve.settings"
"""The group of entry points by which other packages add classes of settings; a class's `TABLE` is its TOML table."""


def settings_of(declared: type[attrs.AttrsInstance]) -> tuple[Setting, ...]:
    """The settings that a class declares, in order."""
    table = _TABLE_OF[declared] if declared in _TABLE_OF else getattr(declared, "TABLE")  # noqa: B009 - of an extension
    return tuple(
        Setting(name=field.name, table=table, default=field.default, **field.metadata)
        for field in attrs.fields(declared)
    )


DEFAULT_MAX_TOKENS: Final = 256
"""The command line's own default: people who type a prompt want to read more than 16 tokens."""

_KINDS: Final[Mapping[sampling.Kind, kinds.ValueKind]] = {
    sampling.Kind.NUMBER: kinds.number(),
    sampling.Kind.INTEGER: kinds.integer(),
    sampling.Kind.SWITCH: kinds.boolean(),
    sampling.Kind.TEXTS: kinds.texts(),
    sampling.Kind.TOKEN_IDS: kinds.token_ids(),
    sampling.Kind.BIASES: kinds.pairs("ID:BIAS,...", "a table of token ids and numbers, or ID:BIAS,...", int),
}


def _setting(declared: sampling.Parameter) -> Setting:
    kind = _KINDS[declared.kind]
    return Setting(
        name=declared.name,
        table="sampling",
        kind=kinds.or_none(kind, "none") if declared.optional else kind,
        default=DEFAULT_MAX_TOKENS if declared.name == "max_tokens" else declared.default,
        summary=f"{declared.meaning}{' Repeatable.' if declared.kind is sampling.Kind.TEXTS else ''}",
    )


_OF_THE_ENGINE: Final = {each.name for each in attrs.fields(EngineSettings)}
SAMPLING_SETTINGS: Final[tuple[Setting, ...]] = tuple(
    _setting(each) for each in PARAMETERS.values() if each.name not in _OF_THE_ENGINE
)
"""All but those that an engine has as the default of every request: on the command line they are one."""


def sampling_settings(door: sampling.Door) -> tuple[Setting, ...]:
    """The sampling parameters that a command offers."""
    return tuple(each for each in SAMPLING_SETTINGS if each.name in set_by(door))


_ADDED: Final = load_extensions(EXTENSIONS, lambda _, declared: settings_of(declared))
ALL_SETTINGS: Final = (*itertools.chain(*map(settings_of, _TABLE_OF), *_ADDED.values()), *SAMPLING_SETTINGS)
_BY_NAME: Final = {each.name: each for each in ALL_SETTINGS}
SettingsT = TypeVar("SettingsT")


class _Part(Generic[SettingsT]):
    """A property of a configuration: the values of one class of settings."""

    def __init__(self, declared: type[SettingsT]) -> None:
        self._declared = declared

    def __get__(self, configuration: Configuration, _: object = None) -> SettingsT:
        return configuration.part(self._declared)


@attrs.frozen
class Configuration:
    """Every setting's value and origin."""

    values: Mapping[str, Sourced]

    engine = _Part(EngineSettings)
    answers = _Part(command.AnswerSettings)
    generate = _Part(command.GenerateSettings)
    verify = _Part(command.VerifySettings)
    bench = _Part(command.BenchSettings)
    client = _Part(command.ClientSettings)
    serve_bench = _Part(command.ServeBenchSettings)
    log = _Part(command.LogSettings)
    trace = _Part(command.TraceSettings)
    serve = _Part(server.ServeSettings)

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of those settings that a source set, by name; the rest is for another program to choose."""
        return {name: self.values[name].value for name in names if self.values[name].origin != "default"}

    def with_model_defaults(self, defaults: Mapping[str, Any], origin: str) -> Configuration:
        """Let the model's own sampling defaults replace ours, and nothing that a source set."""
        replaced = {
            name: _BY_NAME[name].read(value, origin, text=False)
            for name, value in defaults.items()
            if name in PARAMETERS and self.values[name].origin == "default"
        }
        return Configuration({**self.values, **replaced})

    def with_argument(self, name: str, value: str | None, flag: Any) -> Configuration:
        """Let an argument of the command stand for a setting's flag, which may repeat it; None changes nothing."""
        if value is None:
            return self
        if flag not in {None, value}:
            raise BadValueError(name, f"is given twice, as {value!r} and as {flag!r}")
        read = _BY_NAME[name].read(value, f"the argument {name.upper()}", text=True)
        return Configuration({**self.values, name: read})

    @property
    def sampling(self) -> SamplingParams:
        """The sampling part; raises `BadValueError` with the origin of a value out of range."""
        return merge_sampling({name: self.values[name] for name in PARAMETERS})

    def part(self, declared: type[SettingsT]) -> SettingsT:
        """The values of one class of settings, or of one that is made of such."""
        fields = attrs.fields(declared)  # type: ignore[arg-type]
        if not fields[0].metadata:
            return declared(**{each.name: self.part(type(each.default)) for each in fields})
        return declared(**{each.name: self.values[each.name].value for each in fields})


def read_configuration(
    flags: Mapping[str, Any], environ: Mapping[str, str], *, config: str | None = None
) -> Configuration:
    """Merge all sources. A flag that was not given is None (or empty, for one that repeats)."""
    path = config or environ.get(CONFIG_VARIABLE) or None
    values = {each.name: Sourced(each.default, "default") for each in ALL_SETTINGS}
    values |= read_toml(path, ALL_SETTINGS) if path else {}
    for each in ALL_SETTINGS:
        if written := environ.get(each.variable):
            values[each.name] = each.read(written, each.variable, text=True)
        if (given := flags.get(each.name)) not in (None, ()):
            values[each.name] = each.read(given, each.flag, text=isinstance(given, str))
    return Configuration(values)


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
    read = {name: _BY_NAME[name].read(value, origin, text=False) for name, value in fields.items()}
    kept = {name: Sourced(getattr(sampling, name), "the command") for name in PARAMETERS.keys() - read.keys()}
    return merge_sampling(kept | read)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and name no setting."""
    known = {each.variable for each in ALL_SETTINGS} | {CONFIG_VARIABLE}
    return sorted(name for name in environ if name.startswith("NANOSERVE_") and name not in known)


def argument_settings(arguments: Mapping[str, Any]) -> EngineSettings:
    """Engine settings from Python arguments; None leaves the default."""
    known = [field.name for field in attrs.fields(EngineSettings)]
    checked = {}
    for name, value in arguments.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise BadValueError(name, f"is not a setting{f'; did you mean {near[0]}?' if near else ''}")
        if value is not None:
            checked[name] = _BY_NAME[name].read(value, f"the argument {name}", text=False).value
    return EngineSettings(**checked)
