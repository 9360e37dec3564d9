"""Every setting: what it is called, where its value came from, and what it may be."""

from nanoserve.entrypoints.compose.config.bench_settings import BenchSettings
from nanoserve.entrypoints.compose.config.configuration import (
    Configuration,
    argument_settings,
    read_configuration,
)
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.offline_settings import GenerateSettings, VerifySettings
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.compose.config.shared_settings import LogSettings

__all__ = [
    "BenchSettings",
    "Configuration",
    "EngineSettings",
    "GenerateSettings",
    "LogSettings",
    "ServeSettings",
    "VerifySettings",
    "argument_settings",
    "read_configuration",
]
