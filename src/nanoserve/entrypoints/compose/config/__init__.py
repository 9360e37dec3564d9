"""Every setting: what it is called, where its value came from, and what it may be."""

from nanoserve.entrypoints.compose.config.command_settings import (
    BenchSettings,
    GenerateSettings,
    LogSettings,
)
from nanoserve.entrypoints.compose.config.configuration import (
    Configuration,
    argument_settings,
    read_configuration,
)
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings

__all__ = [
    "BenchSettings",
    "Configuration",
    "EngineSettings",
    "GenerateSettings",
    "LogSettings",
    "ServeSettings",
    "argument_settings",
    "read_configuration",
]
