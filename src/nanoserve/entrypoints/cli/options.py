"""A command's options made from its settings, the configuration read back from them, and `--print-config`, which shows it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.settings_shown import as_table, as_toml, written
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration, settings_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import set_by

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Panels = Mapping[str, Sequence[Setting | str]]
"""A command's help by the title of each panel: its settings, and the flags of its other options."""


def named(settings: Sequence[Setting], *names: str) -> tuple[Setting, ...]:
    """Those settings that have one of the names."""
    return tuple(each for each in settings if each.name in names)


_ALL: Final = settings_of(EngineSettings)
MODEL: Final = _ALL[0]
LOADING: Final = named(
    _ALL[1:], "revision", "dtype", "device", "quantization", "tensor_parallel_size", "max_model_len"
)
"""How the model is loaded, which stands beside it in every help."""
ENGINE: Final = tuple(each for each in _ALL[1:] if each not in LOADING)
_PATHS: Final = {"FILE", "FOLDER", "PATH", "ID_OR_FOLDER"}
Print = Callable[[Configuration, Sequence[Setting]], Iterator[str]]
api_key_option: Final = click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)


def configured(
    name: str,
    panels: Panels,
    *,
    defaults: Mapping[str, Any] | None = None,
    argument: str | None = None,
    unset: str = "{}",
    sample: bool = False,
    shown: Callable[..., Configuration] = lambda configuration, **_options: configuration,
) -> Callable[[CommandT], Callable[..., Any]]:
    """Give a command the options of its settings; it is called with the configuration that they make, and its own options.

    Args:
        name: the command as it is typed.
        panels: what it has beside logging, `--config` and `--print-config`.
        defaults: the command's own defaults, by setting.
        argument: the setting that the command's only argument stands for.
        unset: what help says of a sampling parameter that models have defaults for; `{}` is ours.
        sample: it has `--print-toml`.
        shown: what `--print-config` shows, from the configuration and the command's own options.
    """
    own = defaults or {}
    panels = {
        **panels,
        "Configuration and logs": (
            *("--config", "--print-config", *["--print-toml"] * sample, "--help", "--help-all"),
            *settings_of(LogSettings),
        ),
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
        def run(
            reporting: Reporting, /, *, config: str | None, print_as: Print | None, **arguments: Any
        ) -> None:
            flags = {each.name: arguments.pop(each.name) for each in settings}
            if argument is not None:
                _stand_for(flags, argument, arguments["named"])
            configuration = _read(flags, config, reporting)
            if argument is not None:
                configuration = configuration.with_argument(argument, arguments.pop("named"))
            _refuse_address(configuration)
            configuration = configuration.with_model_defaults(own, name)
            if any(each.table == "sampling" for each in settings):
                _ = configuration.sampling  # a value out of range is refused before anything is loaded
            if print_as is None:
                command(configuration, **arguments)
                return
            for line in print_as(shown(configuration, **arguments), settings):
                click.echo(line)

        return click.pass_obj(_with_options(run, settings, own, argument, unset, sample=sample))

    return decorate


def _with_options(
    command: Callable[..., Any],
    settings: Sequence[Setting],
    own: Mapping[str, Any],
    argument: str | None,
    unset: str,
    *,
    sample: bool,
) -> Callable[..., Any]:
    """The command with an option for each of its settings, those for configurations, and its argument."""
    made = command
    prints = {"--print-toml": (as_toml, "Show them as a configuration file with comments.")} if sample else {}
    prints["--print-config"] = (as_table, "Show every setting, its value and its origin.")
    for flag, (form, summary) in prints.items():
        option = click.option(flag, "print_as", flag_value=form, type=click.UNPROCESSED, help=summary)
        made = option(made)
    summary = "Read settings from a TOML file."
    made = click.option("--config", metavar="FILE", type=click.Path(), help=summary)(made)
    for each in reversed(settings):
        is_models = each.name in set_by(Door.MODEL) and each.name not in own
        made = _option(each, unset if is_models else "{}")(made)
    if argument is not None:
        kind = click.Path() if argument == "model" else str
        made = click.argument("named", required=False, metavar=f"[{argument.upper()}]", type=kind)(made)
    return made


def _stand_for(flags: Mapping[str, Any], name: str, value: str | None) -> None:
    if value is not None and flags[name] not in {None, value}:
        raise BadValueError(name, f"is given twice, as {value!r} and as {flags[name]!r}")


def _refuse_address(configuration: Configuration) -> None:
    model = configuration.engine.model
    if model is not None and model.startswith(("http://", "https://")):
        raise BadValueError(
            "model", f"{model!r} is an address and no model; nanoserve chat --url talks to a server"
        )


def _read(flags: Mapping[str, Any], config: str | None, reporting: Reporting) -> Configuration:
    """The configuration of this call, with logging and error reports set up as it asks."""
    from nanoserve.entrypoints.compose.log import configure_log, warn_of_unknown_variables  # noqa: PLC0415 - slow to import

    configuration = read_configuration(flags, os.environ, config=config)
    reporting.debug = configuration.log.debug
    configure_log(configuration.log)
    warn_of_unknown_variables(os.environ)
    return configuration


def _option(setting: Setting, unset: str) -> Callable[[CommandT], CommandT]:
    """Files and words are completed in shells that complete."""
    kind, shown = setting.kind, written(setting.kind, setting.default)
    is_said = shown in ("", "false", "none") or (shown == "auto" and "if not given" in setting.summary)
    text = setting.summary if is_said else f"{setting.summary} [default: {unset.format(shown)}]"
    if kind.is_switch:
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.name, default=None, help=text)

    def words(_ctx: click.Context, _option: click.Parameter, begun: str) -> list[str]:
        return [each for each in kind.words if each.startswith(begun)]

    return click.option(
        *setting.flags,
        setting.name,
        default=None,
        multiple=kind.repeats,
        metavar=kind.metavar,
        type=click.Path() if kind.metavar in _PATHS else str,
        shell_complete=words if kind.words else None,
        help=text,
    )
