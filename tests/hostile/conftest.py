"""One server with a key, over an engine without a model; and one with the embedded model, for its sampler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process import scripted_engine
from tests.process.command import COMMAND
from tests.process.server_process import ServerProcess, server_process

KEY = "sk-Secret0fTheHostileTests"


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    """Over the scripted engine; over the built-in model where a test is parametrised with `"model"`."""
    has_model = getattr(request, "param", None) == "model"
    command = COMMAND if has_model else scripted_engine.COMMAND
    # Neighbours are compared with what they were answered alone.
    exact = ("--deterministic",) if has_model else ()
    arguments = ("--api-key", KEY, "--max-body-size", "8388608", *exact)
    with server_process(tmp_path_factory.mktemp("hostile"), *arguments, command=command) as started:
        started.wait_until_ready()
        yield started
