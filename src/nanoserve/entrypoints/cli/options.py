"""A command's options made from its settings, the configuration read back from them, and `--print-config`, which shows it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration, settings_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.kinds import Kind
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.ports.errors import BadValueError

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Panels = Mapping[str, Sequence[Setting | str]]
"""A command's help by the title of each panel: its settings, and the flags of its other options."""

MODEL, *ENGINE = settings_of(EngineSettings)
api_key_option: Final = click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)


def configured(
    name: str,
    panels: Panels,
    *,
    defaults: Mapping[str, Any] | None = None,
    argument: str | None = None,
    shown: Callable[..., Configuration] = lambda configuration, **_options: configuration,
) -> Callable[[CommandT], Callable[..., Any]]:
    """Give a command the options of its settings; it is called with the configuration that they make, and its own options.

    Args:
        name: the command as it is typed.
        panels: what it has beside logging, `--config` and `--print-config`.
        defaults: the command's own defaults, by setting.
        argument: the setting that the command's argument, called `named`, stands for.
        shown: what `--print-config` shows, from the configuration and the command's own options.
    """
    own = defaults or {}
    panels = {
        **panels,
        "Configuration and logs": ("--config", "--print-config", "--help", *settings_of(LogSettings)),
    }
    settings = [
        attrs.evolve(each, default=own.get(each.name, each.default))
        for panel in panels.values()
        for each in panel
        if isinstance(each, Setting)
    ]
    click.rich_click.OPTION_GROUPS[name] = [
        {"name": title, "options": [each.flag if isinstance(each, Setting) else each for each in panel]}
        for title, panel in panels.items()
    ]

    def decorate(command: CommandT) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(reporting: Reporting, /, *, config: str | None, print_config: bool, **arguments: Any) -> None:
            flags = {each.name: arguments.pop(each.name) for each in settings}
            if argument is not None:
                _stand_for(flags, argument, arguments["named"])
            configuration = _read(flags, config, reporting)
            if argument is not None:
                configuration = configuration.with_argument(argument, arguments.pop("named"))
            configuration = configuration.with_model_defaults(own, name)
            if any(each.table == "sampling" for each in settings):
                _ = configuration.sampling  # a value out of range is refused before anything is loaded
            if print_config:
                _print(shown(configuration, **arguments), settings)
            else:
                command(configuration, **arguments)

        made = click.option(
            "--print-config", is_flag=True, help="Show every setting, its value and its origin."
        )(run)
        made = click.option("--config", metavar="FILE", help="Read settings from a TOML file.")(made)
        for each in reversed(settings):
            made = _option(each)(made)
        return click.pass_obj(made)

    return decorate


def named(settings: Sequence[Setting], *names: str) -> tuple[Setting, ...]:
    """Those settings that have one of the names."""
    return tuple(each for each in settings if each.name in names)


def _stand_for(flags: Mapping[str, Any], name: str, value: str | None) -> None:
    if value is not None and flags[name] not in {None, value}:
        raise BadValueError(name, f"is given twice, as {value!r} and as {flags[name]!r}")


def _read(flags: Mapping[str, Any], config: str | None, reporting: Reporting) -> Configuration:
    """The configuration of this call, with logging and error reports set up as it asks."""
    from nanoserve.entrypoints.compose.log import configure_log, warn_of_unknown_variables  # noqa: PLC0415 - slow to import

    configuration = read_configuration(flags, os.environ, config=config)
    reporting.debug = configuration.log.debug
    configure_log(configuration.log)
    warn_of_unknown_variables(os.environ)
    return configuration


def _option(setting: Setting) -> Callable[[CommandT], CommandT]:
    shown = _shown(setting.kind, setting.default)
    text = setting.summary if shown in ("", "false", "none") else f"{setting.summary} [default: {shown}]"
    if setting.kind.is_switch:
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.name, default=None, help=text)
    return click.option(
        setting.flag,
        setting.name,
        default=None,
        multiple=setting.kind.repeats,
        metavar=setting.kind.metavar,
        help=text,
    )


def _shown(kind: Kind, value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return kind.none_word or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(":".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def _print(configuration: Configuration, settings: Sequence[Setting]) -> None:
    found = [(each, configuration.values[each.name]) for each in settings]
    rows = [("name", "value", "origin")]
    rows += [(each.name, _shown(each.kind, sourced.value), sourced.origin) for each, sourced in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
