from __future__ import annotations

import attrs
import structlog

from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.server.serve import isolated
from nanoserve.entrypoints.server.serving import Serving


def test_kv_events_that_would_say_nothing_are_warned_of() -> None:
    silent = Serving(engine=EngineSettings(), serve=ServeSettings(), log=LogSettings())
    publishing = attrs.evolve(silent, engine=EngineSettings(kv_events_port=5557))
    for settings, warnings in ((silent, 0), (publishing, 1)):
        with structlog.testing.capture_logs() as logs:
            assert isolated(settings).engine.isolation
        assert sum("--share-prefix-cache" in each["event"] for each in logs) == warnings
