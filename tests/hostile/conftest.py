"""One server for all attackers, with a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.server_process import ServerProcess, server_process

KEY = "sk-Secret0fTheHostileTests"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    with server_process(folder, "--api-key", KEY, "--max-body-size", "8388608") as started:
        started.wait_until_ready()
        yield started
