"""The program's log: structlog, configured here and nowhere else, on standard error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.configuration import unknown_variables
from nanoserve.entrypoints.compose.printable import printable
from nanoserve.ports.errors import StepFailedError


def configure_log(settings: LogSettings) -> None:
    """Write records of the level and above, as text or as one JSON object per line."""
    wants_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    console = structlog.dev.ConsoleRenderer(  # its tracebacks show no values, which may be prompts or keys
        colors=wants_colours and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    renderers: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.log_json
        else [escape_controls, console]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def escape_controls(_logger: Any, _method: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters: parts of a record may come from strangers."""
    for name, value in record.items():
        if isinstance(value, str) and not value.isprintable():
            record[name] = printable(value)
    return record


def warn_of_unknown_variables(environ: Mapping[str, str]) -> None:
    """A misspelt variable would otherwise be ignored in silence."""
    for name in unknown_variables(environ):
        structlog.get_logger().warning("this environment variable is not a setting", name=name)


def log_failed_step(step: int, error: Exception, ended: list[str]) -> None:
    """Why a step of the engine failed, and which requests end for it; where none does, each is tried alone."""
    trace = None if isinstance(error, StepFailedError) else error
    reason = f"{type(error).__name__}: {error}"
    structlog.get_logger().error("a step failed", step=step, error=reason, ended=ended, exc_info=trace)


def log_model(assembly: Assembly) -> None:
    """Log the loaded model, and decisions that the settings left open."""
    facts = assembly.facts
    told = {**facts.budget, "memory": dict(facts.memory), "products": dict(facts.products)}
    structlog.get_logger().info("model loaded", folder=assembly.folder, **told)
