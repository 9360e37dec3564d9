"""Schemathesis against the server's own OpenAPI document: requests that fit it, and requests that do not."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hostile.conftest import KEY
from tests.process import scripted_engine
from tests.process.server_process import ServerProcess, server_process

ROOT = pathlib.Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,"
    "ignored_auth,error_shape"
)
"""All but those for which every value of the right type would have to be taken, and Litestar's OPTIONS to know its siblings."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One with a short context: answers that may go on to its end are among the requests."""
    folder = tmp_path_factory.mktemp("schemathesis")
    arguments = ("--api-key", KEY, "--max-model-len", "128")
    with server_process(folder, *arguments, command=scripted_engine.COMMAND) as started:
        started.wait_until_ready()
        yield started


def attack(server: ServerProcess, folder: pathlib.Path, *arguments: str) -> int:
    """How many requests were made; fails where an answer was wrong."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--checks", CHECKS, "--mode", "all"),
            *("--header", f"Authorization: Bearer {KEY}", "--request-timeout", "60", "--no-color"),
            *("--suppress-health-check", "all", "--warnings", "off", "--generation-database", "none"),
            *("--exclude-path", "/live"),  # its answer has no end
            *arguments,
        ],
        cwd=folder,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.hostile.error_check", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    made = re.search(r"(\d+) generated", done.stdout)
    assert made, done.stdout
    assert "Tested: 0" not in done.stdout
    return int(made[1])


def test_requests_that_fit_the_document_and_requests_that_do_not(
    server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    phases = ("--phases", "examples,fuzzing,stateful")
    assert attack(server, tmp_path, *phases, "--max-examples", "10", "--seed", "1") > 100
    assert "Traceback" not in server.err.read_text()


@pytest.mark.slow
def test_requests_that_fit_the_document_and_requests_that_do_not_for_minutes(
    server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    assert attack(server, tmp_path, "--max-examples", "1000", "--max-time", "300") > 5000
    assert "Traceback" not in server.err.read_text()
