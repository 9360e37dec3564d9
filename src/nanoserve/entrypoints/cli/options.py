"""Command-line options made from settings, the configuration read back from them, and `--print-config`, which shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import rich_click as click
from rich_click.utils import OptionGroupDict

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration
from nanoserve.entrypoints.compose.config.kinds import Boolean, Kind, Optional
from nanoserve.entrypoints.compose.config.list_kinds import Strings
from nanoserve.entrypoints.compose.config.setting import Setting

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def settings_options(*settings: Setting) -> Callable[[CommandT], CommandT]:
    """One option per setting, and `--config` and `--print-config`; values stay text, the settings read them."""

    def decorate(command: CommandT) -> CommandT:
        command = click.option(
            "--print-config", is_flag=True, help="Show every setting, its value and its origin."
        )(command)
        command = click.option("--config", metavar="FILE", help="Read settings from a TOML file.")(command)
        for each in reversed(settings):
            command = _option(each)(command)
        return command

    return decorate


def read_settings(flags: Mapping[str, Any], reporting: Reporting) -> Configuration:
    """The configuration of this call, with logging and error reports set up as it asks."""
    from nanoserve.entrypoints.compose.log import configure_log, warn_of_unknown_variables  # noqa: PLC0415 - slow to import

    configuration = read_configuration(flags, os.environ, config=flags["config"])
    reporting.debug = configuration.log.debug
    configure_log(configuration.log)
    warn_of_unknown_variables(os.environ)
    return configuration


def panel(name: str, settings: Sequence[Setting], *others: str) -> OptionGroupDict:
    """A panel of the help, in rich-click's words."""
    return {"name": name, "options": [*others, *(each.flag for each in settings)]}


def _option(setting: Setting) -> Callable[[CommandT], CommandT]:
    kind = _inner(setting.kind)
    if isinstance(kind, Boolean):
        declaration = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(declaration, setting.name, default=None, help=_help(setting))
    return click.option(
        setting.flag,
        setting.name,
        default=None,
        multiple=isinstance(kind, Strings),
        metavar=kind.metavar,
        help=_help(setting),
    )


def _inner(kind: Kind) -> Kind:
    return kind.kind if isinstance(kind, Optional) else kind


def _help(setting: Setting) -> str:
    shown = show_value(setting.kind, setting.default)
    return setting.summary if shown in ("", "false", "none") else f"{setting.summary} [default: {shown}]"


def show_value(kind: Kind, value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return kind.word if isinstance(kind, Optional) else "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(":".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def print_configuration(configuration: Configuration, settings: Sequence[Setting]) -> None:
    """Write the table to standard output."""
    rows = [("name", "value", "origin")]
    rows += [
        (each.name, show_value(each.kind, sourced.value), sourced.origin)
        for each in settings
        for sourced in (configuration.values[each.name],)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
