"""What the engine's view does while nobody looks, and while it may not watch."""

from __future__ import annotations

from playwright.sync_api import Route, expect

from tests.browser.engine_page import LOG_END, NEXT_FRAMES, VIEW, open_engine
from tests.browser.sending import sender
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

COUNT_CHANGES = """() => {
  window.changes = 0;
  const everything = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver((all) => (window.changes += all.length)).observe(document.querySelector("#engine-view"), everything);
}"""


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
    page.get_by_role("tab", name="Engine").click()
    expect(page.locator(".engine-state")).to_contain_text("nobody else")
    expect(page.locator(".engine-state")).to_have_text("Ready")
