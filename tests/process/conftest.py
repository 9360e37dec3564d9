"""Fixtures of the end-to-end tests: the embedded model, loaded once in this process to compare commands with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.offline import LLM


@pytest.fixture(scope="session")
def folder() -> str:
    return str(model_folder())


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as opened:
        yield opened
