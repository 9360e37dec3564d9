"""The engine's process dies under a page that looks on: the page says so, and goes on with the next one."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest
from playwright.sync_api import expect

from tests.browser.engine_page import REMEMBER_STATES, VIEW, open_engine, shown_books
from tests.browser.playground import QUESTION, ask, finished, open_playground, set_parameters, text_of
from tests.browser.sending import sender
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess, server_process


@pytest.fixture(scope="module")
def mortal(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of its own: others would notice."""
    with server_process(tmp_path_factory.mktemp("mortal"), "--max-model-len", "2048") as started:
        started.wait_until_ready()
        yield started


def engine_of(server: ServerProcess) -> psutil.Process:
    [engine] = psutil.Process(server.process.pid).children()
    return engine


def test_the_view_says_that_the_engine_restarts_and_follows_the_next_one(
    visits: Visits, mortal: ServerProcess
) -> None:
    page = open_engine(visits, mortal.url)
    with sender(mortal.url) as sending:
        sending.send([5, 6, 7], max_tokens=6)
    page.wait_for_function(f"() => {VIEW}.replay.finished.get('length') === 1")
    page.evaluate(REMEMBER_STATES)
    engine_of(mortal).kill()
    expect(page.locator(".engine-state")).to_have_text("Ready, restarted once", timeout=60_000)
    states = page.evaluate("window.states")
    assert states[0] == "Ready"
    assert any(each.startswith("Restarting") for each in states), states
    with sender(mortal.url) as sending:
        sending.send([5, 6, 7], max_tokens=9)
    page.wait_for_function(f"() => {VIEW}.replay.generatedTokens === 9")
    assert shown_books(page)[3] == []
    expect(page.locator("#engine-blocks-0")).to_contain_text("0 held")


def test_an_answer_that_broke_off_says_so_and_keeps_what_had_come(
    visits: Visits, mortal: ServerProcess
) -> None:
    page = open_playground(visits, mortal.url)
    set_parameters(page, max_tokens=2000, ignore_eos=True)
    answer = ask(page, QUESTION)
    expect(answer.locator(".answer-text")).to_have_text(re.compile(".{6}"))
    seen = text_of(answer)
    os.kill(engine_of(mortal).pid, signal.SIGKILL)
    expect(answer.get_by_role("alert")).to_contain_text("is kept")
    assert text_of(finished(answer)).startswith(seen)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
