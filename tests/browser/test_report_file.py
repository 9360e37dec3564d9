"""A report opened from the disk: no server, no fault, and at every step the books of the run."""

from __future__ import annotations

import json
import pathlib

from playwright.sync_api import expect

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect.report import make_report
from tests.browser.visits import Visits
from tests.unit.entrypoints.recorded_run import FORMAT, recorded_run

HOSTILE = (
    "</script><script>document.title = 'taken'</script>",
    "<img src=x onerror=fail()>",
    "\"'`${x}\\",
    "\u4e16",
)
VIEW = "document.querySelector('#engine-view').view"


def test_a_report_shows_its_run_from_the_disk(visits: Visits, tmp_path: pathlib.Path) -> None:
    run = recorded_run(*HOSTILE, num_blocks=24)
    path = tmp_path / "report.html"
    path.write_bytes(make_report(run.header, run.records, FORMAT))
    expected = [json.loads(FORMAT.encode(books.snapshot())) for _, books in walk(run)]
    page = visits.open(path.as_uri())
    expect(page.locator(".engine-state")).to_have_text("Recording")
    assert page.evaluate(f"{VIEW}.replay.snapshot()") == expected[-1]
    page.get_by_role("button", name="To the start").click()
    shown = [page.evaluate(f"{VIEW}.replay.snapshot()")]
    for _ in expected[1:]:
        page.get_by_role("button", name="One turn on").click()
        shown.append(page.evaluate(f"{VIEW}.replay.snapshot()"))
    assert shown == expected
    assert page.title().startswith("nanoserve: built-in")
    assert page.locator("#engine-view img, #engine-view script").count() == 0
    page.get_by_role("button", name="Theme: system").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert visits.requested == [path.as_uri()]
