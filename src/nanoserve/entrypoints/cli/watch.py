"""`nanoserve watch`: scripted experiments that show how the engine works."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.shared_settings import LOG_SETTINGS

SETTINGS: Final = (*ENGINE_SETTINGS, *LOG_SETTINGS)

click.rich_click.OPTION_GROUPS["nanoserve watch"] = [
    panel("Output", (), "--png", "--report", "--trace"),
    panel("Engine", ENGINE_SETTINGS),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@click.argument("name", required=False, metavar="[EXPERIMENT]")
@click.option("--png", metavar="FILE", help="Draw what happened into this PNG file.")
@click.option("--report", metavar="FILE", help="Write a page that replays it, one file that needs no server.")
@click.option("--trace", metavar="FILE", help="Write its step log here, for `nanoserve inspect`.")
@settings_options(*SETTINGS)
@click.pass_obj
def watch(
    reporting: Reporting,
    /,
    *,
    name: str | None,
    png: str | None,
    report: str | None,
    trace: str | None,
    **flags: Any,
) -> None:
    """Run EXPERIMENT on the engine and say what happened; without EXPERIMENT, list the experiments.

    Each brings settings and requests of its own; every engine option given here changes it, to see what follows.
    """
    from nanoserve.entrypoints.offline.experiments.catalogue import (  # noqa: PLC0415 - not needed for --help
        EXPERIMENTS,
        find_experiment,
    )

    configuration = read_settings(flags, reporting)
    if name is None:
        for each in EXPERIMENTS:
            click.echo(f"{each.name:<16} {each.title}")
        return
    experiment = find_experiment(name)
    from nanoserve.entrypoints.offline.experiments.command import run_watch, with_experiment  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.offline.experiments.outputs import Wanted  # noqa: PLC0415 - as above

    if flags["print_config"]:
        print_configuration(with_experiment(configuration, experiment), SETTINGS)
        return
    run_watch(configuration, experiment, Wanted(png=png, report=report, trace=trace))
