"""Two pages outlive everything that can happen to a server: its start, a dead engine, a drain, its return, its sudden end."""

from __future__ import annotations

import pathlib
import re
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.engine_page import REMEMBER_STATES, VIEW, shown_books
from tests.browser.playground import QUESTION, ask, finished, open_playground, set_parameters, text_of
from tests.browser.sending import sender
from tests.browser.visits import Visits
from tests.patience import PATIENCE, wait_until
from tests.ports import reserved_port
from tests.process.server_process import ServerProcess, server_process

CUT = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
DRAINING = "Draining: no new requests are taken"


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


def test_from_the_start_of_a_server_to_the_end_of_the_next(
    visits: Visits, tmp_path: pathlib.Path, port: int
) -> None:
    visits.expect_fault("status of 503")
    visits.expect_fault(CUT)
    url = f"http://127.0.0.1:{port}"
    (first, second) = (tmp_path / "first", tmp_path / "second")
    first.mkdir()
    second.mkdir()
    with server_process(first, "--port", str(port)) as server:
        wait_until(lambda: listens(url) and server.children())
        with server.held_engine():
            engine = visits.open(f"{url}/#engine")
            expect(engine.locator(".engine-state")).to_have_text("Starting")
            engine.evaluate(REMEMBER_STATES)
        server.wait_until_ready()
        expect(engine.locator(".engine-state")).to_have_text("Ready")
        chat = open_playground(visits, url)
        the_engine_dies(server, engine, chat)
        the_server_drains(server, engine)
        states = engine.evaluate("window.states")
        assert states[:2] == ["Starting", "Ready"]
        restarting, restarted, draining = (
            next(number for number, each in enumerate(states) if each.startswith(beginning))
            for beginning in ("Restarting", "Ready, restarted once", DRAINING)
        )
        assert restarting < restarted < draining
    the_server_is_not_reached(chat)
    with server_process(second, "--port", str(port)) as server:
        server.wait_until_ready()
        set_parameters(chat, max_tokens=4)
        chat.locator("#send").click()
        assert text_of(finished(chat.get_by_role("article", name="Answer").nth(1)))
        expect(chat.locator("#composer-problem")).to_be_empty()
        assert QUESTION in chat.locator("#transcript").inner_text()
        answer, seen = long_answer(chat)
        server.process.kill()
        expect_kept(answer, seen)


def the_engine_dies(server: ServerProcess, page: Page, chat: Page) -> None:
    """The view follows the next engine, and so does an answer that has begun."""
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=6)
    page.wait_for_function(f"() => {VIEW}.replay.finished.get('length') === 1")
    answer, seen = long_answer(chat)
    [engine] = server.children()
    engine.kill()
    expect(page.locator(".engine-state")).to_have_text("Ready, restarted once")
    before = text_of(answer)
    expect(answer.locator(".answer-text")).not_to_have_text(before)
    chat.get_by_role("button", name="Stop").click()
    assert text_of(finished(answer)).startswith(seen)
    expect(page.locator(".engine-tile", has_text="Engine restarts").locator(".engine-number")).to_have_text(
        "1"
    )
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=9)
    page.wait_for_function(f"() => {VIEW}.replay.finished.get('length') === 1")
    assert shown_books(page)[3] == []
    expect(page.locator("#engine-blocks-0")).to_contain_text("0 held")


def the_server_drains(server: ServerProcess, page: Page) -> None:
    """What is under way is answered; then the server is gone."""
    body = {"model": "built-in", "prompt": "Once", "max_tokens": 200, "n": 4, "ignore_eos": True}
    with server.client() as client:
        talk = threading.Thread(target=lambda: client.post("/v1/completions", json=body), daemon=True)
        accepted = server.metrics()["nanoserve:requests_accepted_total"]
        with server.held_engine():
            talk.start()
            wait_until(lambda: server.metrics()["nanoserve:requests_accepted_total"] == accepted + 4)
            server.signal(signal.SIGTERM)
            expect(page.locator(".engine-state")).to_contain_text(DRAINING)
        assert server.wait() == 0
        expect(page.locator(".engine-state")).to_contain_text("The server does not answer")
        talk.join(PATIENCE)


def the_server_is_not_reached(chat: Page) -> None:
    """The playground says so, and keeps the message."""
    chat.locator("#prompt").fill("Are you there?")
    chat.locator("#send").click()
    expect(chat.locator("#composer-problem")).to_contain_text("cannot be reached")
    expect(chat.locator("#prompt")).to_have_value("Are you there?")
    expect(chat.get_by_role("article")).to_have_count(2)


def long_answer(chat: Page) -> tuple[Locator, str]:
    """An answer that will not end soon, and its beginning."""
    set_parameters(chat, max_tokens=900, ignore_eos=True)
    answer = ask(chat)
    expect(answer.locator(".answer-text")).to_have_text(re.compile(".{6}"))
    return answer, text_of(answer)


def expect_kept(answer: Locator, seen: str) -> None:
    expect(answer.get_by_role("alert")).to_contain_text("is kept")
    assert text_of(finished(answer)).startswith(seen)
    expect(answer.page.get_by_role("button", name="Send")).to_be_visible()


def listens(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", timeout=PATIENCE, trust_env=False).status_code == 200
    except httpx.ConnectError:
        return False
