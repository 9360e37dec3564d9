"""A page that is hidden does not watch the engine: the stream ends after a while, and is taken up where it is by then."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.engine_page import (
    VIEW,
    assert_same_books,
    open_engine,
    shown_books,
    table,
)
from tests.browser.sending import Sender
from tests.browser.stepped_server import SteppedServer
from tests.browser.visits import Visits
from tests.patience import PATIENCE

PROMPT = list(range(100, 110))
HASTE = """() => {
  const wait = window.setTimeout;
  window.setTimeout = (then, after, ...rest) => wait(then, after === 30_000 ? 100 : after, ...rest);
}"""
"""Half a minute goes by at once."""
HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""What a browser does to a page behind another one of its tabs; headless, it shows them all."""
CONNECTION = ".engine-banner:not([data-state=connecting]) .engine-state"


def viewers(server: SteppedServer) -> int:
    """How many watch, as the metrics tell."""
    metrics = httpx.get(f"{server.url}/metrics", timeout=PATIENCE, trust_env=False).text
    [count] = re.findall(r"^nanoserve[_:]viewers\S* (\d+)", metrics, re.MULTILINE)
    return int(count)


@pytest.mark.parametrize("view", ["Engine", "Playground"])
def test_the_stream_ends_and_is_taken_up_again(
    visits: Visits, held: SteppedServer, sending: Sender, view: str
) -> None:
    page = open_engine(visits, held.url)
    page.evaluate(HASTE)
    sending.send(PROMPT, max_tokens=40)
    first = held.wait_for_living(1)
    held.turn(5)
    assert_same_books(page, held)
    page.get_by_role("button", name=first).click()
    page.get_by_role("tab", name=view).click()
    page.evaluate(HIDE, True)
    held.wait_for(lambda: viewers(held) == 0)
    left = shown_books(page)
    sending.send(PROMPT[::-1], max_tokens=40)
    second = held.wait_for_living(2)
    held.turn(6)
    assert shown_books(page) == left, "nothing comes any more"
    page.evaluate(HIDE, False)
    held.wait_for(lambda: viewers(held) == 1)
    page.get_by_role("tab", name="Engine").click()
    expect(page.locator(CONNECTION)).to_have_text("Ready")
    assert_same_books(page, held, by_snapshot=True)
    held.turn(3)
    assert_same_books(page, held)
    assert {row[0] for row in table(page, "Timeline as a table")} == {first, second}
    expect(page.get_by_role("button", name=first)).to_have_attribute("aria-pressed", "true")
    assert viewers(held) == 1


def test_a_paused_view_is_found_as_it_was_left(visits: Visits, held: SteppedServer, sending: Sender) -> None:
    page = open_engine(visits, held.url)
    page.evaluate(HASTE)
    sending.send(PROMPT, max_tokens=40)
    held.wait_for_living(1)
    held.turn(5)
    assert_same_books(page, held)
    page.get_by_role("button", name="Pause").click()
    paused = shown_books(page)
    page.evaluate(HIDE, True)
    held.wait_for(lambda: viewers(held) == 0)
    held.turn(6)
    page.evaluate(HIDE, False)
    held.wait_for(lambda: viewers(held) == 1)
    page.wait_for_function(f"() => !{VIEW}.player.isAtEnd")
    assert shown_books(page) == paused
    page.get_by_role("button", name="Resume").click()
    assert_same_books(page, held, by_snapshot=True)


def test_a_look_elsewhere_changes_nothing(visits: Visits, held: SteppedServer, sending: Sender) -> None:
    page = open_engine(visits, held.url)
    sending.send(PROMPT, max_tokens=40)
    held.wait_for_living(1)
    page.evaluate(HIDE, True)
    held.turn(5)
    page.evaluate(HIDE, False)
    assert_same_books(page, held)
    page.evaluate(HASTE)
    page.get_by_role("tab", name="Playground").click()
    page.wait_for_timeout(300)  # three times what would end the stream of a hidden page
    held.turn(5)
    page.get_by_role("tab", name="Engine").click()
    assert_same_books(page, held)
    assert sum(each.endswith("/live") for each in visits.requested) == 1
