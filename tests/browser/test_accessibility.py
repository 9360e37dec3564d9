"""Everybody can use the page: axe-core finds no grave fault in any view, in light and dark, on a desk and on a phone."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import grave_faults
from tests.browser.engine_page import VIEW, open_engine
from tests.browser.playground import ask, finished, open_playground, set_parameters
from tests.browser.sending import sender
from tests.browser.test_replay import open_recording
from tests.browser.visits import Visits, unfolded
from tests.process.command import run
from tests.process.server_process import ServerProcess
from tests.unit.entrypoints.recorded_run import recorded_run

PHONE = {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": PHONE, "has_touch": True, "is_mobile": True},
    "dark phone": {"color_scheme": "dark", "viewport": PHONE, "has_touch": True, "is_mobile": True},
}


@pytest.fixture(params=list(LOOKS))
def look(request: pytest.FixtureRequest) -> dict[str, Any]:
    return LOOKS[request.param]


def test_the_playground(visits: Visits, server: ServerProcess, look: dict[str, Any]) -> None:
    page = open_playground(visits, server.url, **look)
    assert grave_faults(page) == []
    page.locator("#parameter-sheet").evaluate("each => { each.open = true }")
    page.locator("#show-tokens").check()
    set_parameters(page, max_tokens=8, n=2)
    answer = finished(ask(page))
    answer.get_by_role("option").first.focus()
    expect(page.get_by_role("tooltip")).to_be_visible()
    assert grave_faults(unfolded(page)) == []


def test_the_engine_at_work(visits: Visits, server: ServerProcess, look: dict[str, Any]) -> None:
    page = open_engine(visits, server.url, **look)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=600, n=3)
        page.wait_for_function(f"() => {VIEW}.replay.sequences.size === 3")
        page.get_by_role("button", name="Pause").click()
    page.locator("[aria-roledescription='block map']").focus()
    page.keyboard.press("Home")
    assert grave_faults(unfolded(page)) == []


def test_a_report(visits: Visits, look: dict[str, Any], tmp_path: pathlib.Path) -> None:
    trace, report = tmp_path / "run.jsonl", tmp_path / "report.html"
    trace.write_bytes(b"".join(recorded_run(words=True).lines))
    assert run("inspect", str(trace), "--report", str(report)).returncode == 0
    page = open_recording(visits, report.as_uri(), **look)
    page.get_by_role("slider").fill("40")
    assert grave_faults(unfolded(page)) == []


def test_the_rules_are_kept_in_earnest(visits: Visits, server: ServerProcess) -> None:
    page = open_playground(visits, server.url)
    page.locator("#prompt-label").evaluate("each => each.remove()")
    page.locator("#prompt").evaluate("each => { each.placeholder = '' }")
    assert any(each.startswith("label (critical): #prompt") for each in grave_faults(page))
