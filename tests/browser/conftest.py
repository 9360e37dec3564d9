"""Fixtures of the browser tests: Chromium, started once per file, and servers, started once per worker.

Playwright keeps an event loop running while a browser is open; that is why a browser does not outlive its file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import chromium_path, started_chromium
from tests.browser.sending import Sender, sender
from tests.browser.stepped_server import SteppedServer, stepped_server
from tests.browser.visits import Visits
from tests.patience import PATIENCE
from tests.process.server_process import ServerProcess, server_process


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> str:
    return chromium_path(required=pytestconfig.getoption("--require-browser"))


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=1000 * PATIENCE)
    with started_chromium(chromium) as started:
        yield started


@pytest.fixture
def visits(browser: Browser) -> Iterator[Visits]:
    """Pages without a fault, and without a request to anybody else."""
    opened = Visits(browser)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys, as everybody starts it."""
    with server_process(tmp_path_factory.mktemp("server")) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture(scope="session")
def stepped(chromium: str) -> Iterator[SteppedServer]:
    """A server whose engine makes a turn only when a test says so; some files have one of other sizes."""
    with stepped_server() as started:
        yield started


@pytest.fixture
def held(stepped: SteppedServer) -> Iterator[SteppedServer]:
    """The stepped server, at rest and with an empty prefix cache."""
    stepped.hold()
    stepped.engine.forget_prefixes()
    yield stepped
    stepped.let_go()


@pytest.fixture
def sending(held: SteppedServer) -> Iterator[Sender]:
    """Every request is answered before the next test."""
    with sender(held.url) as started:
        yield started
        held.let_go()
