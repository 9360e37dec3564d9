"""The server goes away under the playground: it says so, keeps what had come, and goes on when the server is back."""

from __future__ import annotations

import pathlib
import re

from playwright.sync_api import expect

from tests.browser.playground import QUESTION, ask, finished, open_playground, set_parameters, text_of
from tests.browser.test_life import free_port
from tests.browser.visits import Visits
from tests.process.server_process import server_process


def test_a_server_that_dies_and_comes_back(visits: Visits, tmp_path: pathlib.Path) -> None:
    visits.expect_fault(
        "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
    )
    visits.expect_fault("status of 503")
    port = str(free_port())
    (first, second) = (tmp_path / "first", tmp_path / "second")
    first.mkdir()
    second.mkdir()
    with server_process(first, "--port", port) as server:
        server.wait_until_ready()
        page = open_playground(visits, server.url)
        set_parameters(page, max_tokens=900, ignore_eos=True)
        answer = ask(page)
        expect(answer.locator(".answer-text")).to_have_text(re.compile(".{6}"))
        seen = text_of(answer)
        server.process.kill()
        expect(answer.get_by_role("alert")).to_contain_text("is kept")
    assert text_of(finished(answer)).startswith(seen)
    page.locator("#prompt").fill("Are you there?")
    page.locator("#send").click()
    expect(page.locator("#composer-problem")).to_contain_text("cannot be reached")
    expect(page.locator("#prompt")).to_have_value("Are you there?")
    expect(page.get_by_role("article")).to_have_count(2)
    with server_process(second, "--port", port) as server:
        server.wait_until_ready()
        set_parameters(page, max_tokens=4)
        page.locator("#send").click()
        again = finished(page.get_by_role("article", name="Answer").nth(1))
        assert text_of(again)
        expect(page.locator("#composer-problem")).to_be_empty()
        assert QUESTION in page.locator("#transcript").inner_text()
