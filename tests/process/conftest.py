"""Fixtures of the end-to-end tests: the embedded model, loaded once in this process to compare commands with."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.offline import LLM


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of whoever runs the tests, and no log set up by one test left for the next."""
    for name in [each for each in os.environ if each.startswith("NANOSERVE_")]:
        monkeypatch.delenv(name)
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def folder() -> str:
    return str(model_folder())


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as opened:
        yield opened
