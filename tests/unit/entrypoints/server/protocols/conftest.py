"""One server, which speaks every protocol, for the tests that do not break it, and one whose model says what a script has."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.protocol_world import serving
from tests.unit.entrypoints.server.protocols.talking_world import SCRIPT, Talker, talking


@pytest.fixture(scope="package")
def shared_world() -> Iterator[AppWorld]:
    with serving() as served:
        yield served


@pytest.fixture
def world(shared_world: AppWorld) -> Iterator[AppWorld]:
    """The server, with nothing left running by the test."""
    yield shared_world
    shared_world.call(lambda: shared_world.engine.allow(None))
    shared_world.wait_until(lambda: shared_world.is_idle)


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    with talking(SCRIPT) as started:
        yield started


@pytest.fixture
def openai_client(talker: Talker) -> Iterator[openai.OpenAI]:
    """Of the talker."""
    with openai.OpenAI(base_url=f"{talker[0].url}/v1", api_key="x", max_retries=0, timeout=60) as made:
        yield made
