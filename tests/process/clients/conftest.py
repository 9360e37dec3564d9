"""One real server for all the tests of this folder, over a model or a scripted engine, and the official clients that call it."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

import anthropic
import openai
import pytest

from tests.patience import PATIENCE, wait_until
from tests.process import scripted_engine
from tests.process.clients.access import KEY, KEY_FILE
from tests.process.command import COMMAND
from tests.process.server_process import ServerProcess, server_process

ROWS = "8"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """In float32, so that its numbers are those of other programs."""
    with serving(tmp_path_factory.mktemp("clients"), COMMAND) as started:
        yield started


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For what no model need answer."""
    with serving(tmp_path_factory.mktemp("scripted"), scripted_engine.COMMAND) as started:
        yield started


@contextlib.contextmanager
def serving(folder: pathlib.Path, command: Sequence[str], *options: str) -> Iterator[ServerProcess]:
    """With keys, few rows and one place to wait; it must have come to no grief when it is left."""
    keys = folder / "keys.toml"
    keys.write_text(KEY_FILE)
    keys.chmod(0o600)
    arguments = ["--dtype", "float32", "--api-key-file", str(keys), "--max-num-seqs", ROWS]
    bounds = ["--max-waiting-requests", "1", "--queue-timeout", "5"]
    with server_process(folder, *arguments, *bounds, *options, command=command) as started:
        started.wait_until_ready()
        yield started
        assert "Traceback" not in started.err.read_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as opened:
        yield opened


@pytest.fixture
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=PATIENCE) as opened:
        yield opened


@pytest.fixture
def until(server: ServerProcess) -> Callable[[str], None]:
    """Waits for a metric to have a value, such as `num_requests_running 0`."""

    def wait(wanted: str) -> None:
        name, value = wanted.split()
        wait_until(lambda: server.metrics(KEY).get(f"nanoserve:{name}") == float(value), lambda: wanted)

    return wait
