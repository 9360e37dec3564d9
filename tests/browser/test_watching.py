"""The engine is followed from the moment the page is opened, and not drawn while it is not seen."""

from __future__ import annotations

from playwright.sync_api import Route, expect

from tests.browser.engine_page import LOG_END, NEXT_FRAMES, VIEW, open_engine, script
from tests.browser.sending import sender
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

COUNT_CHANGES = script("count_changes.js")


def test_a_view_behind_the_other_tab_goes_on_and_draws_nothing(visits: Visits, server: ServerProcess) -> None:
    page = open_engine(visits, server.url)
    page.get_by_role("tab", name="Playground").click()
    page.evaluate(NEXT_FRAMES)
    page.evaluate(COUNT_CHANGES)
    before = page.evaluate(LOG_END)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=20)
    page.wait_for_function(f"before => {LOG_END} > before + 10", arg=before)
    page.evaluate(NEXT_FRAMES)
    assert page.evaluate("window.changes") == 0
    page.get_by_role("tab", name="Engine").click()
    page.wait_for_function("() => window.changes > 0")
    step = page.evaluate(f"() => {VIEW}.replay.step")
    expect(page.locator("#engine-step-facts")).to_contain_text(f"Step {step}")


def test_an_idle_engine_is_given_eight_requests(visits: Visits, server: ServerProcess) -> None:
    page = open_engine(visits, server.url)
    page.wait_for_function(f"() => {LOG_END} > 0")
    count = f"() => {VIEW}.player.log.history.rows.size"
    before = page.evaluate(count)
    button = page.get_by_role("button", name="Send 8 requests")
    expect(button).to_have_attribute("aria-disabled", "false")
    with page.expect_response("**/v1/completions"), server.held_engine():
        button.click()
        expect(button).to_have_attribute("aria-disabled", "true")
        button.press("Enter")
    expect(button).to_have_attribute("aria-disabled", "false")
    page.wait_for_function(f"before => {VIEW}.player.log.history.rows.size >= before + 8", arg=before)
    assert page.evaluate(count) == before + 8, "while it is busy the button sends nothing"
    expect(button).to_be_focused()


def test_a_request_that_cannot_be_sent_is_told(visits: Visits, server: ServerProcess) -> None:
    visits.expect_fault("status of 429")
    page = open_engine(visits, server.url)
    page.route(
        "**/v1/completions", lambda route: route.fulfill(status=429, json={"error": {"message": "Full."}})
    )
    page.get_by_role("button", name="Send 8 requests").click()
    expect(page.get_by_role("alert").filter(has_text="Full.")).to_be_visible()


def test_one_viewer_too_many_is_told_so_and_let_in_later(visits: Visits, server: ServerProcess) -> None:
    visits.expect_fault("503")
    page = visits.open(server.url)
    refusals: list[str] = []

    def refuse_once(route: Route) -> None:
        if refusals:
            route.fallback()
            return
        refusals.append(route.request.url)
        route.fulfill(status=503, headers={"retry-after": "1"}, json={"error": {"message": "full"}})

    page.route("**/live", refuse_once)
    page.reload()
    page.get_by_role("tab", name="Engine").click()
    expect(page.locator(".engine-state")).to_contain_text("nobody else")
    expect(page.locator(".engine-state")).to_have_text("Ready")
