"""`nanoserve serve`: the model over HTTP, for every client that speaks OpenAI's or Anthropic's interface."""

from __future__ import annotations

import sys
from typing import Any, Final

import attrs
import rich_click as click

from nanoserve.entrypoints.cli.help import Command
from nanoserve.entrypoints.cli.options import ENGINE, LOADING, MODEL, Panels, configured
from nanoserve.entrypoints.compose.config import Configuration, LogSettings
from nanoserve.entrypoints.compose.config.command_settings import AnswerSettings, TraceSettings
from nanoserve.entrypoints.compose.config.configuration import settings_of
from nanoserve.entrypoints.compose.config.serve_settings import (
    AccessSettings,
    BoundSettings,
    ListenSettings,
    WatchSettings,
)
from nanoserve.ports.errors import NanoserveError

_PANELS: Final[Panels] = {
    "Model": (MODEL, *LOADING, *settings_of(AnswerSettings)),
    "Listening": settings_of(ListenSettings),
    "Access": settings_of(AccessSettings),
    "Bounds": settings_of(BoundSettings),
    "Watching the engine": (*settings_of(TraceSettings), *settings_of(WatchSettings)),
    "Engine": ENGINE,
}


@click.command(cls=Command)
@configured("nanoserve serve", _PANELS, argument="model", sample=True)
def serve(configuration: Configuration) -> None:
    """Serve MODEL, a folder, a GGUF file or a name on the Hugging Face hub; if none is named, the built-in one.

    SIGTERM or Ctrl-C lets living requests finish, a second one ends them.
    """
    log = _log_settings(configuration)
    from nanoserve.entrypoints.server.serve import serve as run  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.server.serving import Serving  # noqa: PLC0415 - as above
    from nanoserve.entrypoints.server.start_errors import with_code  # noqa: PLC0415 - not needed for --help

    settings = Serving(
        engine=configuration.engine,
        serve=configuration.serve,
        answers=configuration.answers,
        log=log,
        trace=configuration.trace,
    )
    try:
        run(settings, _announce(log))
    except NanoserveError as error:
        raise with_code(error) from error


def _log_settings(configuration: Configuration) -> LogSettings:
    """A server logs each request; as JSON, unless standard error is a terminal."""
    from nanoserve.entrypoints.compose.log import configure_log  # noqa: PLC0415 - slow to import

    log, values = configuration.log, configuration.values
    if values["log_level"].origin == "default":
        log = attrs.evolve(log, log_level="info")
    if values["log_json"].origin == "default":
        log = attrs.evolve(log, log_json=not sys.stderr.isatty())
    configure_log(log)
    return log


def _announce(log: LogSettings) -> Any:
    """How the server says that it has started: to people on standard output, to programs as one more record."""
    import structlog  # noqa: PLC0415 - slow to import

    from nanoserve.entrypoints.server.report import Started  # noqa: PLC0415 - not needed for --help

    def announce(started: Started) -> None:
        for line in started.lines():
            click.echo(line)
        if log.log_json:
            structlog.get_logger().info("ready", **started.record())
        for warning in started.warnings:
            structlog.get_logger().warning(warning)

    return announce
