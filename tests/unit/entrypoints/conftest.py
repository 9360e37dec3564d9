"""Fixtures of the entry points' tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.offline import LLM
from tests.unit.entrypoints.scripted_world import scripted_assembly

OpenLLM = Callable[..., LLM]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of whoever runs the tests, and no log set up by one test left for the next."""
    for name in [each for each in os.environ if each.startswith("NANOSERVE_")]:
        monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()


@pytest.fixture
def open_llm(monkeypatch: pytest.MonkeyPatch) -> OpenLLM:
    """Opens an `LLM` over an assembly without torch."""

    def open_over(assembly: Assembly | None = None, **arguments: Any) -> LLM:
        built = assembly or scripted_assembly()
        monkeypatch.setattr("nanoserve.entrypoints.offline.llm.assemble", lambda _settings: built)
        return LLM(**arguments)

    return open_over
