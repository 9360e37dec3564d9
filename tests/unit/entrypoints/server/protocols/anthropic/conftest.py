"""One server for the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.unit.entrypoints.server.protocols.protocol_world import World, serving


@pytest.fixture(scope="package")
def shared_world() -> Iterator[World]:
    with serving() as served:
        yield served


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The server, with nothing left running by the test."""
    yield shared_world
    shared_world.call(lambda: shared_world.engine.allow(None))
    shared_world.wait_until(lambda: shared_world.is_idle)


def anthropic_client(world: World) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=world.url, api_key="alice", max_retries=0, timeout=60)


@pytest.fixture
def client(world: World) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(world) as made:
        yield made


@pytest.fixture
def asked() -> dict[str, Any]:
    """A request that generates 12 tokens, the same ones each time."""
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 12,
        "extra_body": {"seed": 7, "ignore_eos": True},
    }
