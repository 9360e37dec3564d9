"""`nanoserve chat`: a conversation in the terminal."""

from __future__ import annotations

from typing import Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import (
    ENGINE,
    LOADING,
    MODEL,
    Panels,
    api_key_option,
    configured,
    named,
)
from nanoserve.entrypoints.compose.config.command_settings import (
    AnswerSettings,
    ClientSettings,
    GenerateSettings,
)
from nanoserve.entrypoints.compose.config.configuration import Configuration, sampling_settings, settings_of
from nanoserve.entrypoints.compose.config.kinds import or_none, text
from nanoserve.ports.parameter import Door

_SAMPLING: Final = sampling_settings(Door.CHAT)
_MODEL: Final = attrs.evolve(
    MODEL,
    kind=or_none(text("ID_OR_FOLDER"), "built-in"),
    summary="A model folder, a GGUF file or the name of a model on the Hugging Face hub; with --url, the served model's name.",
)
(_SYSTEM,) = named(settings_of(GenerateSettings), "system")
_PANELS: Final[Panels] = {
    "Who answers": (
        _MODEL,
        *settings_of(ClientSettings),
        "--api-key",
        attrs.evolve(_SYSTEM, summary="The system message that opens the conversation."),
    ),
    "Model": (*LOADING, *settings_of(AnswerSettings)),
    "Sampling": _SAMPLING,
    "Engine": ENGINE,
}


@click.command(cls=Command)
@configured(
    "nanoserve chat", _PANELS, defaults={"max_tokens": None}, argument="model", unset="the model's, else {}"
)
@api_key_option
def chat(configuration: Configuration, *, api_key: str | None) -> None:
    """Talk to MODEL in this process, or to a server (--url).

    /help lists the commands, Ctrl-C stops an answer. From a pipe, every line is a message and only answers are printed.
    """
    from nanoserve.entrypoints.client.chat import run_chat  # noqa: PLC0415 - not needed for --help

    run_chat(configuration, key=api_key, sampling=_SAMPLING)
