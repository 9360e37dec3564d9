"""Every setting: what it is called, where its value came from, and what it may be."""

from nanoserve.entrypoints.config.bench_settings import BenchSettings
from nanoserve.entrypoints.config.configuration import Configuration, argument_settings, read_configuration
from nanoserve.entrypoints.config.engine_settings import EngineSettings
from nanoserve.entrypoints.config.offline_settings import GenerateSettings, VerifySettings
from nanoserve.entrypoints.config.serve_settings import ServeSettings
from nanoserve.entrypoints.config.shared_settings import LogSettings

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
