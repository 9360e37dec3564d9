"""`nanoserve chat`, once its settings are read: find somebody to talk to, and talk."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from nanoserve.entrypoints.client.address import read_address
from nanoserve.entrypoints.client.chat.conversation import Conversation
from nanoserve.entrypoints.client.chat.keyboard import messages
from nanoserve.entrypoints.client.chat.screen import choose_screen
from nanoserve.entrypoints.client.chat.speakers import LocalSpeaker, RemoteSpeaker, Speaker
from nanoserve.entrypoints.client.chat.talk import Talk
from nanoserve.entrypoints.client.openai_server import OpenAIServer
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import ENGINE_SETTINGS
from nanoserve.entrypoints.compose.config.setting import Setting
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.errors import BadValueError


def run_chat(configuration: Configuration, *, key: str | None, sampling: tuple[Setting, ...]) -> None:
    """Talk until the input ends; raises whatever goes wrong before, and in a pipe also meanwhile."""
    _ = configuration.sampling  # a bad value is refused before anything is loaded
    if configuration.client.url is None:
        _talk(_load(configuration), configuration)
        return
    _refuse_engine_flags(configuration)
    with OpenAIServer(read_address(configuration.client.url, key)) as server:
        model = server.find_model(configuration.engine.model).id
        _talk(RemoteSpeaker(server, model, _given(configuration, sampling)), configuration)


def _talk(speaker: Speaker, configuration: Configuration) -> None:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    conversation = Conversation(system=configuration.generate.system)
    talk = Talk(speaker, choose_screen(interactive=interactive), conversation, interactive)
    talk.hold(messages(interactive=interactive))


def _load(configuration: Configuration) -> LocalSpeaker:
    console = Console(stderr=True)
    with console.status("loading the model"):
        session = Session(assemble(configuration.engine))
    log_model(session.assembly)
    defaults = session.assembly.defaults
    sampling = configuration.with_model_defaults(defaults.values, defaults.origin).sampling
    return LocalSpeaker(session, sampling, configuration.engine.model or "the built-in model")


def _given(configuration: Configuration, sampling: tuple[Setting, ...]) -> dict[str, Any]:
    """What somebody set; everything else is for the server to choose."""
    found = {each.name: configuration.values[each.name] for each in sampling}
    return {
        name: list(sourced.value) if isinstance(sourced.value, tuple) else sourced.value
        for name, sourced in found.items()
        if sourced.origin != "default" and sourced.value is not None
    }


def _refuse_engine_flags(configuration: Configuration) -> None:
    """A flag about an engine that is somewhere else would be ignored in silence."""
    for each in ENGINE_SETTINGS:
        if each.name != "model" and configuration.values[each.name].origin == each.flag:
            message = "is the server's business: leave it out, or leave --url out to load the model here"
            raise BadValueError(each.name, message)
