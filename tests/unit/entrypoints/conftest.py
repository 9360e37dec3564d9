"""Fixtures of the entry points' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.entrypoints.offline import LLM
from tests.unit.entrypoints.scripted_world import scripted_assembly

OpenLLM = Callable[..., LLM]


@pytest.fixture
def open_llm(monkeypatch: pytest.MonkeyPatch) -> OpenLLM:
    """Opens an `LLM` over an assembly without torch."""

    def open_over(assembly: Assembly | None = None, **arguments: Any) -> LLM:
        built = assembly or scripted_assembly()
        monkeypatch.setattr("nanoserve.entrypoints.offline.llm.assemble", lambda _settings: built)
        return LLM(**arguments)

    return open_over
