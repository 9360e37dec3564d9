"""Servers for the tests of the OpenAI endpoints: one over a scripted model, one over the real one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config import argument_settings
from tests.unit.entrypoints.scripted_world import scripted_assembly
from tests.unit.entrypoints.server.protocols.openai.serving import Serving, serving


@pytest.fixture(scope="session")
def scripted() -> Iterator[Serving]:
    """Letters as tokens; `a` ends a sequence."""
    with serving(scripted_assembly(eos_token_ids=(0,))) as server:
        yield server


@pytest.fixture(scope="session")
def embedded() -> Iterator[Serving]:
    """The embedded model."""
    settings = {"dtype": "float32", "threads": 1, "max_model_len": 256, "max_num_seqs": 8}
    with serving(assemble(argument_settings({**settings, "enable_prefix_caching": False}))) as server:
        yield server


@pytest.fixture
def raw(scripted: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted.url, timeout=60) as client:
        yield client


@pytest.fixture
def raw_embedded(embedded: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=embedded.url, timeout=60) as client:
        yield client
