"""The page can be used by all: axe-core finds no grave fault in any view, and nothing is wider than its screen.

Each view is visited on a desk and on a phone, and looked at in light and dark. The page's security policy stays on.
"""

from __future__ import annotations

import functools
import pathlib
from importlib import resources
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from nanoserve.entrypoints.page.inspect.report import make_report
from tests.browser.engine_page import NEXT_FRAMES, VIEW, open_engine
from tests.browser.playground import ask, finished, open_playground, set_parameters
from tests.browser.sending import sender
from tests.browser.test_replay import open_recording
from tests.browser.visits import Visits, unfolded
from tests.process.server_process import ServerProcess
from tests.unit.entrypoints.recorded_run import FORMAT, recorded_run

GRAVE: Final = {"serious", "critical"}
PHONE: Final = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SCREENS: Final[dict[str, dict[str, Any]]] = {"desk": {}, "phone": PHONE}


@pytest.fixture(params=SCREENS)
def screen(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SCREENS[request.param]


@functools.cache
def axe() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()


def grave_faults(page: Page) -> list[str]:
    """Serious and critical violations of WCAG 2.2 AA and of axe's best practices, in light and in dark."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe())
    faults = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert result["passes"], "axe has looked at nothing"
        faults += [
            f"{each['id']} ({each['impact']}, {scheme}): {', '.join(map(str, node['target']))}: {node['failureSummary']}"
            for each in result["violations"]
            if each["impact"] in GRAVE
            for node in each["nodes"]
        ]
    return faults


def test_the_playground(visits: Visits, server: ServerProcess, screen: dict[str, Any]) -> None:
    page = open_playground(visits, server.url, **screen)
    assert grave_faults(page) == []
    page.locator("#parameter-sheet").evaluate("each => { each.open = true }")
    page.locator("#show-tokens").check()
    set_parameters(page, max_tokens=8, n=2)
    answer = finished(ask(page))
    answer.get_by_role("option").first.focus()
    expect(page.get_by_role("tooltip")).to_be_visible()
    assert grave_faults(unfolded(page)) == []


def test_the_engine_at_work(visits: Visits, server: ServerProcess, screen: dict[str, Any]) -> None:
    page = open_engine(visits, server.url, **screen)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=600, n=3)
        page.wait_for_function(f"() => {VIEW}.replay.sequences.size === 3")
        page.get_by_role("button", name="Pause").click()
    page.locator("[aria-roledescription='block map']").focus()
    page.keyboard.press("Home")
    assert grave_faults(unfolded(page)) == []


def test_a_report(visits: Visits, screen: dict[str, Any], tmp_path: pathlib.Path) -> None:
    run, report = recorded_run(words=True), tmp_path / "report.html"
    report.write_bytes(make_report(run.header, run.records, FORMAT))
    page = open_recording(visits, report.as_uri(), **screen)
    page.get_by_role("slider").fill("40")
    assert grave_faults(unfolded(page)) == []


def test_the_rules_find_a_fault(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.locator("#prompt-label").evaluate("each => each.remove()")
    page.locator("#prompt").evaluate("each => { each.placeholder = '' }")
    assert any(each.startswith("label (critical, light): #prompt") for each in grave_faults(page))


def test_narrow_screens_scroll_in_one_direction_only(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url, viewport={"width": 360, "height": 740})
    page.locator("#parameter-sheet").evaluate("each => { each.open = true }")
    page.locator("#show-tokens").check()
    set_parameters(page, max_tokens=60, ignore_eos=True)
    finished(ask(page, "An-unbroken-word-" * 30))
    for view in ("Playground", "Engine"):
        page.get_by_role("tab", name=view).click()
        if view == "Engine":
            expect(page.locator(".engine-state")).to_have_text("Ready")
        unfolded(page)
        for width in (360, 390, 768):
            page.set_viewport_size({"width": width, "height": 740})
            page.evaluate(NEXT_FRAMES)
            assert too_wide(page) == [], f"{view} at {width}"
    middles = page.locator(".tab, #theme-button").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect()).map(({ top, bottom }) => (top + bottom) / 2)"
    )
    assert max(middles) - min(middles) < 8, "the head is one line on a tablet"


def too_wide(page: Page) -> list[str]:
    """What makes the page scroll sideways."""
    found: list[str] = page.evaluate("""() => {
      const room = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= room) return [];
      const wide = [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > room + 1);
      return wide.map((each) => `${each.tagName} ${each.id} ${each.className}`);
    }""")
    return found
