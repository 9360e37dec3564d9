"""Every setting: what it is called, where its value came from, and what it may be."""

from nanoserve.entrypoints.config.bench_settings import BenchSettings
from nanoserve.entrypoints.config.configuration import Configuration, argument_settings, read_configuration
from nanoserve.entrypoints.config.engine_settings import EngineSettings
from nanoserve.entrypoints.config.generate_settings import GenerateSettings
from nanoserve.entrypoints.config.log_settings import LogSettings
from nanoserve.entrypoints.config.serve_settings import ServeSettings
from nanoserve.entrypoints.config.verify_settings import VerifySettings

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
