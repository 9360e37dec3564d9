"""The embedded model, loaded once in this process to compare commands with, and servers that many tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.offline import LLM
from tests.process.server_process import ServerProcess, server_process

KEY = "sk-test"


@pytest.fixture(scope="session")
def folder() -> str:
    return str(model_folder())


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without keys, known by one more name; no test changes what another one sees."""
    with server_process(tmp_path_factory.mktemp("open"), "--allowed-host", "llm.example") as started:
        started.wait_until_ready()
        yield started


@pytest.fixture(scope="session")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a key, and a socket `admin.sock` for administrators."""
    folder = tmp_path_factory.mktemp("locked")
    with server_process(folder, "--api-key", KEY, "--admin-uds", str(folder / "admin.sock")) as started:
        started.wait_until_ready()
        yield started
