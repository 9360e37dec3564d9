"""`nanoserve chat`: a conversation in the terminal."""

from __future__ import annotations

from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.failures import Reporting
from nanoserve.entrypoints.cli.options import panel, print_configuration, read_settings, settings_options
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.kinds import Optional, Text
from nanoserve.entrypoints.compose.config.offline_settings import GENERATE_SETTINGS
from nanoserve.entrypoints.compose.config.sampling_settings import sampling_settings
from nanoserve.entrypoints.compose.config.shared_settings import CLIENT_SETTINGS, LOG_SETTINGS
from nanoserve.ports.parameter import Door

ORIGIN: Final = "nanoserve chat"
_SAMPLING: Final = sampling_settings(Door.CHAT, max_tokens=None)
_MODEL: Final = attrs.evolve(
    ENGINE_SETTINGS[0],
    kind=Optional(Text("ID_OR_FOLDER"), "built-in"),
    summary="A model folder or the name of a model on the Hugging Face hub; with --url, the served model's name.",
)
_SYSTEM: Final = tuple(
    attrs.evolve(each, summary="The system message that opens the conversation.")
    for each in GENERATE_SETTINGS
    if each.name == "system"
)
SETTINGS: Final = (_MODEL, *CLIENT_SETTINGS, *_SYSTEM, *_SAMPLING, *ENGINE_SETTINGS[1:], *LOG_SETTINGS)

click.rich_click.OPTION_GROUPS["nanoserve chat"] = [
    panel("Who answers", (_MODEL, *CLIENT_SETTINGS, *_SYSTEM), "--api-key"),
    panel("Sampling", _SAMPLING),
    panel("Engine", ENGINE_SETTINGS[1:]),
    panel("Configuration and logs", LOG_SETTINGS, "--config", "--print-config", "--help"),
]


@click.command()
@click.option(
    "--api-key", metavar="KEY", help="The server's key; the environment's OPENAI_API_KEY if not given."
)
@settings_options(*SETTINGS)
@click.pass_obj
def chat(reporting: Reporting, /, *, api_key: str | None, **flags: Any) -> None:
    """Talk to a model in this process, or to a server (--url).

    /help lists the commands, Ctrl-C stops an answer. From a pipe, every line is a message and only answers are printed.
    """
    configuration = read_settings(flags, reporting).with_model_defaults({"max_tokens": None}, ORIGIN)
    if flags["print_config"]:
        _ = configuration.sampling  # a value out of range is an error here too
        print_configuration(configuration, SETTINGS)
        return
    from nanoserve.entrypoints.client.chat.command import run_chat  # noqa: PLC0415 - not needed for --help

    run_chat(configuration, key=api_key, sampling=_SAMPLING)
