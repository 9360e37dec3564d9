"""On a phone the page scrolls in one direction only, whatever it shows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.playground import ask, finished, open_playground, set_parameters
from tests.browser.visits import Visits, unfolded
from tests.process.server_process import ServerProcess


@pytest.mark.parametrize("width", [360, 390, 768])
def test_a_narrow_screen_scrolls_in_one_direction_only(
    visits: Visits, server: ServerProcess, width: int
) -> None:
    page = open_playground(visits, server.url, viewport={"width": width, "height": 740})
    page.locator("#parameter-sheet").evaluate("each => { each.open = true }")
    page.locator("#show-tokens").check()
    set_parameters(page, max_tokens=60, ignore_eos=True)
    finished(ask(page, "An-unbroken-word-" * 30))
    unfolded(page)
    assert too_wide(page) == []
    page.get_by_role("tab", name="Engine").click()
    expect(page.locator(".engine-state")).to_have_text("Ready")
    unfolded(page)
    assert too_wide(page) == []


def too_wide(page: Page) -> list[str]:
    """What makes the page scroll sideways."""
    found: list[str] = page.evaluate("""() => {
      const room = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= room) return [];
      const wide = [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > room + 1);
      return wide.map((each) => `${each.tagName} ${each.id} ${each.className}`);
    }""")
    return found
