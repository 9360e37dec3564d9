"""The engine behind its port, for tests that check its counts."""

from __future__ import annotations

from typing import Any

from nanoserve.domain.engine import Engine
from nanoserve.ports.driving import EngineHandle


def inside(engine: EngineHandle) -> Engine[Any]:
    assert isinstance(engine, Engine)
    return engine
