"""The command group, and the one place that turns whatever happens into an exit code."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.cli import commands
from nanoserve.entrypoints.cli.batch import run_batch
from nanoserve.entrypoints.cli.bench import bench
from nanoserve.entrypoints.cli.failures import CLOSED_PIPE, Reporting, flush_output, report, warn
from nanoserve.entrypoints.cli.options import Command, CommandGroup
from nanoserve.entrypoints.compose.config.setting import LEFT_OUT, load_extensions
from nanoserve.entrypoints.compose.process import installed_release, silence_warnings


def main() -> None:
    """Run the command line of this process and exit; while Python shuts down, Ctrl-C has nothing left to stop."""
    silence_warnings()
    try:
        sys.exit(flush_output(run_command(sys.argv[1:])))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0, 1 failed, 2 bad usage, 130 interrupted, 141 closed pipe."""
    reporting = Reporting(
        debug="--debug" in arguments
        or os.environ.get("NANOSERVE_DEBUG", "").lower() in {"1", "true", "yes", "on"}
    )
    for package, reason in LEFT_OUT.items():
        warn(f"the package {package} adds {reason}; update or remove it")
    try:
        code = nanoserve.main(list(arguments), prog_name="nanoserve", obj=reporting, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - every error ends as one line
        return report(error, reporting)
    return code if isinstance(code, int) else 0


class _Commands(CommandGroup):
    """Keeps Ctrl-C and a closed pipe from click, which would write a line or choose an exit code of its own."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _own_ending(extra["obj"]):  # prints help
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _own_ending(ctx.obj):
            return super().invoke(ctx)


@contextlib.contextmanager
def _own_ending(reporting: Reporting) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        raise SystemExit(report(error, reporting)) from None
    except SystemExit as ending:
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        raise SystemExit(CLOSED_PIPE) from None  # rich has closed standard output, and chosen 1


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_release(), message="nanoserve %(version)s")
def nanoserve() -> None:
    """Generate text with a language model on this machine, and serve it.

    Every option can also be set in the environment as NANOSERVE_NAME, or in a TOML file named by --config or
    NANOSERVE_CONFIG; --print-config shows each value and where it came from.
    """


_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(*, shell: str) -> None:
    """Print the script with which SHELL (bash, zsh or fish) completes commands, options, words and files."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - not needed for --help

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(nanoserve, {}, "nanoserve", "_NANOSERVE_COMPLETE").source())


_TASKS: Final = {
    "Get text": (commands.generate, commands.chat, commands.serve, run_batch),
    "Get vectors": (commands.embed,),
    "Watch the engine": (commands.top, commands.inspect),
    "Check and measure": (commands.models, commands.verify, bench, commands.tune, commands.env),
    "Set up": (completion,),
}
EXTENSIONS: Final = "nanoserve.commands"
"""The group of entry points by which other packages add commands; `bench calibrate` is one of the group `bench`."""


def _add_extension(name: str, loaded: object) -> None:
    group = bench if name.startswith("bench ") else nanoserve
    if not isinstance(loaded, click.Command):
        raise TypeError("it is no command of click")
    if loaded.name in group.commands:
        raise ValueError(f"there is a command {loaded.name} already")
    group.add_command(loaded)


for _built_in in itertools.chain(*_TASKS.values()):
    nanoserve.add_command(_built_in)
_num_built_in = len(nanoserve.commands)
load_extensions(EXTENSIONS, _add_extension)
for _title, _commands in {**_TASKS, "Many servers": [*nanoserve.commands.values()][_num_built_in:]}.items():
    click.rich_click.COMMAND_GROUPS.setdefault("nanoserve", []).append(
        {"name": _title, "commands": [str(each.name) for each in _commands]}
    )
