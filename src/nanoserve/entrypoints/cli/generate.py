"""`nanoserve generate`: text from one prompt, or from many at once."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.cli.prompt_sources import read_sources
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.offline_settings import GENERATE_SETTINGS
from nanoserve.entrypoints.compose.config.sampling_settings import SAMPLING_SETTINGS
from nanoserve.entrypoints.compose.config.shared_settings import LOG_SETTINGS, TRACE_SETTINGS

SETTINGS: Final = (
    *ENGINE_SETTINGS[:1],
    *SAMPLING_SETTINGS,
    *GENERATE_SETTINGS,
    *TRACE_SETTINGS,
    *ENGINE_SETTINGS[1:],
    *LOG_SETTINGS,
)

click.rich_click.OPTION_GROUPS["nanoserve generate"] = [
    panel("Prompt and output", (ENGINE_SETTINGS[0], *GENERATE_SETTINGS, *TRACE_SETTINGS), "--file"),
    panel("Sampling", SAMPLING_SETTINGS),
    panel("Engine", ENGINE_SETTINGS[1:]),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--file",
    metavar="FILE",
    help="Prompts: one per line, or JSON objects (.jsonl) with `prompt` or `messages`.",
)
@settings_options(*SETTINGS)
@click.pass_obj
def generate(reporting: Reporting, /, *, prompt: str | None, file: str | None, **flags: Any) -> None:
    """Generate text from PROMPT, from standard input (no PROMPT, or -), or from every line of --file.

    Answers go to standard output, everything else to standard error.
    """
    configuration = read_settings(flags, reporting)
    if flags["print_config"]:
        print_configuration(_with_local_defaults(configuration), SETTINGS)
        return
    sources = read_sources(prompt, file)
    from nanoserve.entrypoints.cli.generation import run_generation  # noqa: PLC0415 - loads torch

    run_generation(configuration, sources)


def _with_local_defaults(configuration: Configuration) -> Configuration:
    """The configuration with the model's own sampling defaults, where its files are on this machine already."""
    from nanoserve.entrypoints.compose.bootstrap import local_defaults  # noqa: PLC0415 - not needed for --help

    defaults = local_defaults(configuration.engine.model)
    if defaults is not None:
        configuration = configuration.with_model_defaults(defaults.values, defaults.origin)
    _ = configuration.sampling  # a value out of range is an error here too
    return configuration
