"""Stop means stop: the engine ends the request at once, and keeps computing for the others."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from nanoserve.ports.request import FinishReason
from tests.browser.playground import QUESTION, finished, open_playground, set_parameters, text_of
from tests.browser.sending import sender
from tests.browser.stepped_server import SteppedServer
from tests.browser.visits import Visits


@pytest.fixture
def page(visits: Visits, held: SteppedServer) -> Page:
    page = open_playground(visits, held.url)
    set_parameters(page, max_tokens=900, ignore_eos=True)
    page.locator("#prompt").fill(QUESTION)
    return page


def aborts(server: SteppedServer) -> int:
    return server.engine.scheduler.counters.finished[FinishReason.ABORT]


def test_stop_ends_the_request_in_the_engine_and_keeps_the_text(page: Page, held: SteppedServer) -> None:
    before, scheduler = aborts(held), held.engine.scheduler
    page.locator("#send").click()
    held.wait_for_living(1)
    held.turn(20)
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".answer-text")).not_to_be_empty()
    steps = scheduler.table.step
    page.get_by_role("button", name="Stop").click()
    said = text_of(finished(answer))
    held.wait_for(lambda: aborts(held) == before + 1)
    held.let_go()
    held.wait_for(lambda: not held.engine.has_work)
    assert scheduler.table.step <= steps + 1
    assert not scheduler.table.requests
    assert len(said) > 10
    expect(answer.locator("[data-fact='ended by'] dd")).to_have_text("you")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("clicks", [1, 2])
def test_stop_before_the_first_token_takes_the_question_back(
    page: Page, held: SteppedServer, clicks: int
) -> None:
    before = aborts(held)
    page.locator("#send").click()
    held.wait_for_living(1)
    page.get_by_role("button", name="Stop").click(click_count=clicks)
    held.wait_for(lambda: aborts(held) == before + 1)
    expect(page.locator("#prompt")).to_have_value(QUESTION)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_double_click_does_one_thing(page: Page, held: SteppedServer) -> None:
    before = aborts(held)
    page.locator("#send").dblclick()
    held.wait_for_living(1)
    held.turn(3)
    expect(page.locator(".answer-text")).not_to_be_empty()
    page.get_by_role("button", name="Stop").dblclick()
    held.wait_for(lambda: aborts(held) == before + 1)
    expect(page.get_by_role("article", name="Answer").locator("[data-fact='ended by'] dd")).to_have_text(
        "you"
    )
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert not held.engine.scheduler.table.requests


def test_a_closed_tab_stops_as_well_and_the_neighbours_go_on(page: Page, held: SteppedServer) -> None:
    before = aborts(held)
    page.locator("#send").click()
    held.wait_for_living(1)
    with sender(held.url) as sending:
        sending.send([100, 101, 102], max_tokens=30)
        held.wait_for_living(2)
        held.turn(5)
        page.close()
        held.wait_for(lambda: aborts(held) == before + 1)
        held.let_go()
    assert aborts(held) == before + 1
