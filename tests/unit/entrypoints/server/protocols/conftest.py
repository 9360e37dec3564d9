"""One server, which speaks every protocol, for the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.protocol_world import serving


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
