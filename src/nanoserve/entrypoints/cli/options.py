"""Commands made of settings: an option for each, the configuration read back from them, and `--print-config`, which shows it."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration, settings_of
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.kinds import Secret, ValueKind
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import PARAMETERS, Door, set_by

OWN_PAGES: Final = Path(__file__).with_name("help.toml")
_SHOWS_ALL: Final = "nanoserve.help_all"


@functools.cache
def help_pages(path: Path = OWN_PAGES) -> dict[str, Any]:
    """By the command as it is typed: `examples`, pairs of a command and its purpose, and `common`, the flags listed first."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


class Command(click.RichCommand):
    """A command with examples from `pages`."""

    def __init__(self, *args: Any, pages: Path = OWN_PAGES, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.pages = pages
        names, text = ["--help-all"], "Show every option and exit."
        show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        self.params.append(click.Option(names, help=text, callback=_show_all, **show))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the help's text and its examples."""
        super().format_help_text(ctx, formatter)
        from rich.padding import Padding  # noqa: PLC0415 - completion does without
        from rich.text import Text  # noqa: PLC0415 - as above

        formatter.write(Padding(Text("Examples:"), (0, 1)))
        for command, meaning in help_pages(self.pages)[ctx.command_path]["examples"]:
            formatter.write(Padding(Text(command, style="bold"), (0, 1, 0, 3)))
            formatter.write(Padding(Text(meaning, style="dim"), (0, 1, 0, 7)))
        formatter.write(Text())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """In one panel those that are common, or in several all of them."""
        common = help_pages(self.pages)[ctx.command_path].get("common", "").split()
        if not common or ctx.meta.get(_SHOWS_ALL):
            super().format_options(ctx, formatter)
            return
        listed = [*common, "--help", "--help-all"]
        panel = {"name": "Options that most people use", "options": listed}
        formatter.config.option_groups = {ctx.command_path: [panel]}
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left_out = [each for each in options if not {*listed} & {*each.opts}]
        try:
            for each in left_out:
                each.hidden = True
            super().format_options(ctx, formatter)
        finally:
            for each in left_out:
                each.hidden = False


class CommandGroup(Command, click.RichGroup):
    """A command with commands of its own."""


def _show_all(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_WIDTH: Final = 100


def written(kind: ValueKind, value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return kind.none_word or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(":".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def as_table(configuration: Configuration, settings: Sequence[Setting]) -> Iterator[str]:
    """A line per setting: its name, its value and where that came from."""
    found = [(each, configuration.values[each.name]) for each in settings]
    rows = [("name", "value", "origin")]
    rows += [(each.name, written(each.kind, sourced.value), sourced.origin) for each, sourced in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return (f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)


def as_toml(configuration: Configuration, settings: Sequence[Setting]) -> Iterator[str]:
    """A file for `--config`: values that a source has set are written, defaults are behind a `#`; keys are left out."""
    yield "# Settings of nanoserve, for --config FILE or NANOSERVE_CONFIG. A line without its # takes the place of the default."
    ordered = sorted(settings, key=lambda each: each.table)
    for table, members in itertools.groupby(ordered, key=lambda each: each.table):
        if table:
            yield from ("", f"[{table}]")
        for each in members:
            sourced = configuration.values[each.name]
            yield ""
            yield from textwrap.wrap(
                each.summary, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
            )
            items = sourced.value if isinstance(sourced.value, tuple) else (sourced.value,)
            is_kept = sourced.origin == "default" or any(isinstance(one, Secret) for one in items)
            value = each.default if is_kept else sourced.value
            shown = each.kind.none_word if value is None else value
            # JSON's texts, numbers, switches and lists are TOML's too.
            yield f"{'# ' if is_kept else ''}{each.name} = {json.dumps(shown, ensure_ascii=False)}"


Panels = Mapping[str, Sequence[Setting | click.Option]]
"""A command's help by the title of each panel: its settings, and options that are none."""


def named(settings: Sequence[Setting], *names: str) -> tuple[Setting, ...]:
    """Those settings that have one of the names."""
    return tuple(each for each in settings if each.name in names)


MODEL, *_OTHERS = settings_of(EngineSettings)
LOADING: Final = named(
    _OTHERS,
    *("revision", "task", "dtype", "device", "quantization", "quantize_head"),
    *("tensor_parallel_size", "expert_parallel", "max_model_len"),
)
"""The options of loading a model, which follow it in every help."""
ENGINE: Final = tuple(each for each in _OTHERS if each not in LOADING)
_PATHS: Final = {"FILE", "FOLDER", "PATH", "ID_OR_FOLDER"}


def option(*names: str, metavar: str | None = "FILE", **extra: Any) -> click.Option:
    """An option that is no setting."""
    return click.Option(names, metavar=metavar, **extra)


def switch(*names: str, **extra: Any) -> click.Option:
    """An option that takes no value."""
    return click.Option(names, is_flag=True, **extra)


API_KEY: Final = option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)
_CONFIG: Final = option("--config", type=click.Path(), help="Read settings from a TOML file.")


DEBUG: Final = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)


def _printing(flag: str, form: Callable[..., Any], summary: str) -> click.Option:
    return click.Option([flag, "print_as"], flag_value=form, type=click.UNPROCESSED, help=summary)


_PRINT_CONFIG: Final = _printing("--print-config", as_table, "Show every setting, its value and its origin.")
_PRINT_TOML: Final = _printing("--print-toml", as_toml, "Show them as a configuration file with comments.")


def command(
    name: str,
    panels: Panels,
    *,
    defaults: Mapping[str, Any] | None = None,
    argument: str | None = None,
    unset: str = "{}",
    sample: bool = False,
    shown: Callable[[Configuration], Configuration] = lambda configuration: configuration,
    pages: Path = OWN_PAGES,
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function, which is called with the configuration, and its options that are no settings.

    Args:
        name: the command as it is typed.
        panels: what it has beside logging, `--config` and `--print-config`.
        defaults: the command's own defaults, by setting.
        argument: the setting that the command's only argument stands for, or `prompt`.
        unset: what help says of a sampling parameter that models have defaults for; `{}` is ours.
        sample: it has `--print-toml`.
        shown: what `--print-config` shows of the configuration.
        pages: where its examples are.
    """
    own = defaults or {}
    common: Panels = {
        "Configuration and logs": (_CONFIG, _PRINT_CONFIG, *[_PRINT_TOML] * sample, *settings_of(LogSettings))
    }
    settings, options = _lay_out(name, {**panels, **common}, own, unset)

    def make(run: Callable[..., None]) -> Command:
        @click.pass_obj
        def called(reporting: Reporting, /, *, config: str | None, print_as: Any, **arguments: Any) -> None:
            flags = {each.name: arguments.pop(each.name) for each in settings}
            configuration = _read(flags, config, reporting)
            if argument in flags:
                configuration = configuration.with_argument(argument, arguments.pop("named"), flags[argument])
            _refuse_address(configuration)
            configuration = configuration.with_model_defaults(own, name)
            if any(each.name in PARAMETERS for each in settings):
                _ = configuration.sampling  # a value out of range is refused before anything is loaded
            if print_as is None:
                run(configuration, **arguments)
                return
            for line in print_as(shown(configuration), settings):
                click.echo(line)

        params: list[click.Parameter] = [*options]
        if argument is not None:
            place = "named" if any(each.name == argument for each in settings) else argument
            kind = click.Path() if argument == "model" else str
            params.append(click.Argument([place], required=False, metavar=f"[{argument.upper()}]", type=kind))
        title = name.rpartition(" ")[2]
        return Command(title, callback=called, params=params, help=inspect.getdoc(run), pages=pages)

    return make


def _lay_out(
    name: str, panels: Panels, own: Mapping[str, Any], unset: str
) -> tuple[list[Setting], list[click.Option]]:
    """The settings of a command with its own defaults, and all of its options, of which its help shows a panel each."""
    settings, options = list[Setting](), list[click.Option]()
    groups = click.rich_click.OPTION_GROUPS[name] = []
    for title, panel in panels.items():
        first = len(options)
        for each in panel:
            if isinstance(each, Setting):
                settings.append(attrs.evolve(each, default=own.get(each.name, each.default)))
                of_models = each.name in set_by(Door.MODEL) - own.keys()
                options.append(_option(settings[-1], unset if of_models else "{}"))
            else:
                options.append(each)
        groups.append({"name": title, "options": [each.opts[0] for each in options[first:]]})
    groups[-1]["options"] += ["--help", "--help-all"]
    return settings, options


def _refuse_address(configuration: Configuration) -> None:
    model = configuration.engine.model
    if model is not None and model.startswith(("http://", "https://")):
        raise BadValueError(
            "model", f"{model!r} is an address, not a model; use nanoserve chat --url to talk to a server"
        )


def _read(flags: Mapping[str, Any], config: str | None, reporting: Reporting) -> Configuration:
    """The configuration of this call, with logging and error reports set up as it asks."""
    from nanoserve.entrypoints.compose.log import configure_log, warn_of_unknown_variables  # noqa: PLC0415 - slow to import

    configuration = read_configuration(flags, os.environ, config=config)
    reporting.debug = configuration.log.debug
    configure_log(configuration.log)
    warn_of_unknown_variables(os.environ)
    return configuration


def _option(setting: Setting, unset: str) -> click.Option:
    """Files and words are completed in shells that complete."""
    kind, shown = setting.kind, written(setting.kind, setting.default)
    is_said = shown in ("", "false", "none") or (shown == "auto" and "if not given" in setting.summary)
    text = setting.summary if is_said else f"{setting.summary} [default: {unset.format(shown)}]"
    if kind.is_switch:
        names = [f"{setting.flag}/--no-{setting.flag[2:]}", setting.name]
        return click.Option(names, default=None, help=text)

    def words(_ctx: click.Context, _option: click.Parameter, begun: str) -> list[str]:
        return [each for each in kind.words if each.startswith(begun)]

    return click.Option(
        [setting.flag, setting.name],
        default=None,
        multiple=kind.repeats,
        metavar=kind.metavar,
        type=click.Path() if kind.metavar in _PATHS else str,
        shell_complete=words if kind.words else None,
        help=text,
    )
