"""What the program says about itself: structlog, configured here and nowhere else, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import structlog

from nanoserve.entrypoints.assembly import Assembly
from nanoserve.entrypoints.config import LogSettings
from nanoserve.entrypoints.config.configuration import unknown_variables


def configure_log(settings: LogSettings) -> None:
    """Write records of the level and above, as text or as one JSON object per line."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def warn_of_unknown_variables(environ: Mapping[str, str]) -> None:
    """A misspelt variable would otherwise be ignored in silence."""
    for name in unknown_variables(environ):
        structlog.get_logger().warning("this environment variable is not a setting", name=name)


def log_model(assembly: Assembly) -> None:
    """What was loaded, and what was decided where the settings left it open."""
    structlog.get_logger().info("model loaded", folder=assembly.folder, **attrs.asdict(assembly.budget))
