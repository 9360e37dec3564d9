"""What the playground says of its own requests in the engine: how many wait before one, and where its row is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.engine_page import VIEW
from tests.browser.playground import ask, finished, open_playground, set_parameters
from tests.browser.sending import Sender
from tests.browser.stepped_server import SteppedServer, stepped_server
from tests.browser.test_screen_reader import LISTEN, heard
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

SELECTED = f"() => {VIEW}.player.log.history.rows.get({VIEW}.selected)"


@pytest.fixture(scope="module")
def stepped(chromium: str) -> Iterator[SteppedServer]:
    """One sequence at a time; all others wait."""
    with stepped_server(max_num_seqs=1) as started:
        yield started


def test_a_request_that_waits_says_how_many_are_ahead(
    visits: Visits, held: SteppedServer, sending: Sender
) -> None:
    page = open_playground(visits, held.url)
    page.wait_for_function(f"() => {VIEW}.player.log.end > 0")
    for number in range(3):
        sending.send([100 + number] * 4, max_tokens=4)
        held.wait_for_living(number + 1)
    held.turn()
    set_parameters(page, max_tokens=3)
    page.evaluate(LISTEN)
    answer = ask(page)
    held.wait_for_living(4)
    held.turn()
    queued = answer.locator(".queued")
    expect(queued).to_have_text("queued, 2 ahead")
    while len(held.engine.scheduler.table.requests) > 2:
        held.turn()
    held.turn()
    expect(queued).to_have_text("queued, next")
    held.let_go()
    expect(finished(answer).locator(".queued")).to_be_empty()
    assert [each for each in heard(page) if "queued" in each] == ["queued, 2 ahead"], "it is said once"


def test_each_answer_leads_to_its_row(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.wait_for_function(f"() => {VIEW}.player.log.end > 0")
    set_parameters(page, max_tokens=6, n=2, ignore_eos=True)
    first = finished(ask(page))
    set_parameters(page, max_tokens=400, n=1)
    second = finished(ask(page))
    expect(second.get_by_role("button", name="See it in the engine")).to_have_count(1)
    first.get_by_role("button", name="See it in the engine").nth(1).click()
    expect(page.get_by_role("tab", name="Engine")).to_have_attribute("aria-selected", "true")
    expect(page.locator("[aria-roledescription='timeline']")).to_be_focused()
    row = page.evaluate(SELECTED)
    assert (row["index"], row["numGenerated"]) == (1, 6)
    expect(page.locator("#engine-step-facts")).to_contain_text(f"{row['requestId']} #1: ")
    shown = page.evaluate(f"() => {VIEW}.timeline.rows.drawn.map(({{ row }}) => row.id)")
    assert row["id"] in shown, "what ended long ago is gone back to"


def test_an_answer_that_the_log_has_forgotten_says_so(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.wait_for_function(f"() => {VIEW}.player.log.end > 0")
    set_parameters(page, max_tokens=3)
    answer = finished(ask(page))
    page.evaluate(f"{VIEW}.player.log.history.rows.clear()")
    answer.get_by_role("button", name="See it in the engine").click()
    expect(answer.get_by_role("status")).to_contain_text("does not go back that far")
    expect(page.get_by_role("tab", name="Playground")).to_have_attribute("aria-selected", "true")
