"""`nanoserve watch`: scripted experiments that show how the engine works."""

from __future__ import annotations

from typing import Any

import rich_click as click

from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import ENGINE, LOADING, MODEL, configured
from nanoserve.entrypoints.compose.config.configuration import Configuration


def _with_experiment(configuration: Configuration, *, name: str | None, **_options: Any) -> Configuration:
    from nanoserve.entrypoints.offline.experiments.command import with_experiment  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.offline.experiments.experiment import find_experiment  # noqa: PLC0415 - not needed for --help

    return configuration if name is None else with_experiment(configuration, find_experiment(name))


@click.command(cls=Command)
@click.argument("name", required=False, metavar="[EXPERIMENT]")
@configured(
    "nanoserve watch",
    {"Output": ("--png", "--report", "--trace"), "Model": (MODEL, *LOADING), "Engine": ENGINE},
    shown=_with_experiment,
)
@click.option("--png", metavar="FILE", help="Draw what happened into this PNG file.")
@click.option("--report", metavar="FILE", help="Write a page that replays it, one file that needs no server.")
@click.option("--trace", metavar="FILE", help="Write its step log here, for `nanoserve inspect`.")
def watch(configuration: Configuration, *, name: str | None, **files: str | None) -> None:
    """Run EXPERIMENT on the engine and say what happened; without EXPERIMENT, list the experiments.

    Each brings settings and requests of its own; every engine option given here changes it, to see what follows.
    """
    from nanoserve.entrypoints.offline.experiments.experiment import (  # noqa: PLC0415 - not needed for --help
        EXPERIMENTS,
        find_experiment,
    )

    if name is None:
        for each in EXPERIMENTS:
            click.echo(f"{each.name:<16} {each.title}")
        return
    experiment = find_experiment(name)
    from nanoserve.entrypoints.offline.experiments.command import run_watch  # noqa: PLC0415 - as above

    run_watch(configuration, experiment, **files)
