"""`nanoserve generate`: text from one prompt, or from many at once."""

from __future__ import annotations

from typing import Any, Final, TextIO

import rich_click as click

from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import ENGINE, LOADING, MODEL, Panels, configured
from nanoserve.entrypoints.cli.prompt_sources import read_sources
from nanoserve.entrypoints.compose.config.command_settings import GenerateSettings, TraceSettings
from nanoserve.entrypoints.compose.config.configuration import SAMPLING_SETTINGS, Configuration, settings_of

STRUCTURED: Final = ("--json-schema", "--regex", "--choice")
_PANELS: Final[Panels] = {
    "Model": (MODEL, *LOADING),
    "Prompt and output": (
        "--file",
        *STRUCTURED,
        *settings_of(GenerateSettings),
        *settings_of(TraceSettings),
    ),
    "Sampling": SAMPLING_SETTINGS,
    "Engine": ENGINE,
}


def _with_local_defaults(configuration: Configuration, **_options: Any) -> Configuration:
    """The configuration with the model's own sampling defaults, if its files are on this machine already."""
    from nanoserve.entrypoints.compose.bootstrap import local_defaults  # noqa: PLC0415 - not needed for --help

    defaults = local_defaults(configuration.engine.model)
    if defaults is not None:
        configuration = configuration.with_model_defaults(defaults.values, defaults.origin)
    _ = configuration.sampling  # a value out of range is an error here too
    return configuration


@click.command(cls=Command)
@click.argument("prompt", required=False)
@configured("nanoserve generate", _PANELS, shown=_with_local_defaults, unset="the model's, else {}")
@click.option(
    "--file",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Prompts: one per line, or JSON objects (.jsonl) with `prompt` or `messages`.",
)
@click.option(
    "--json-schema",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Every answer is JSON of the schema in this file.",
)
@click.option("--regex", metavar="PATTERN", help="Every answer matches this regular expression as a whole.")
@click.option(
    "--choice", metavar="TEXT", multiple=True, help="Every answer is one of these texts; may be repeated."
)
def generate(
    configuration: Configuration,
    *,
    prompt: str | None,
    file: str | None,
    json_schema: TextIO | None,
    regex: str | None,
    choice: tuple[str, ...],
) -> None:
    """Generate text from PROMPT, from standard input (no PROMPT, or -), or from every line of --file.

    Answers go to standard output, everything else to standard error.
    """
    asked = {"json": json_schema and json_schema.read(), "regex": regex, "choice": choice or None}
    constraint = constraint_of(structured_outputs=asked)
    sources = read_sources(prompt, file)
    from nanoserve.entrypoints.cli.generation import run_generation  # noqa: PLC0415 - loads torch

    run_generation(configuration, sources, constraint)
