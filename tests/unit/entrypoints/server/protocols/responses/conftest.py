"""One server for the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld


def openai_client(world: AppWorld, key: str = "alice") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(world: AppWorld) -> Iterator[openai.OpenAI]:
    with openai_client(world) as made:
        yield made


@pytest.fixture
def asked() -> dict[str, Any]:
    """A request that generates 12 tokens, the same ones each time."""
    return {
        "model": "scripted",
        "input": "hello",
        "max_output_tokens": 12,
        "extra_body": {"seed": 7, "ignore_eos": True},
    }
