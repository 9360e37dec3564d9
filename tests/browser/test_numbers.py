"""The engine's numbers: what was answered, refused and lost, how long clients waited, and what all of it means."""

from __future__ import annotations

import pathlib
import re

from playwright.sync_api import Locator, Page, expect

from nanoserve.entrypoints.page.inspect.report import make_report
from tests.browser.engine_page import open_engine
from tests.browser.test_replay import open_recording, press
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess
from tests.unit.entrypoints.recorded_run import FORMAT, recorded_run

SECONDS = re.compile(r"^[\d.,]+ m?s$")


def number(page: Page, name: str) -> Locator:
    return tile(page, name).locator(".engine-number")


def tile(page: Page, name: str) -> Locator:
    return page.locator(".engine-tile", has=page.locator("dt", has_text=re.compile(f"^{name}")))


def test_the_numbers_of_a_server_are_those_of_its_metrics(visits: Visits, server: ServerProcess) -> None:
    with server.client() as client:
        body = {"model": "built-in", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.post("/v1/completions", json=body | {"temperature": -1}).status_code == 400
        assert (
            client.post("/v1/chat/completions", json={"model": "nobody", "messages": []}).status_code >= 400
        )
        metrics = client.get("/metrics").text
    page = open_engine(visits, server.url)
    finished = counts(metrics, "nanoserve:requests_finished_total", "reason")
    rejected = counts(metrics, "nanoserve:requests_rejected_total", "reason")
    assert finished["length"] > 0 < sum(rejected.values())
    expect(number(page, "Finished")).to_have_text(f"{sum(finished.values()):,}")
    expect(tile(page, "Finished")).to_contain_text(f"{finished['length']:,} length")
    expect(number(page, "Refused")).to_have_text(f"{sum(rejected.values()):,}")
    expect(number(page, "Errors")).to_have_text(str(finished["error"]))
    expect(number(page, "Engine restarts")).to_have_text("0")
    for name in ("TTFT, p50", "ITL, p50"):
        expect(number(page, name)).to_have_text(SECONDS)
        expect(tile(page, name)).to_contain_text(re.compile(r"p99 [\d.,]+ m?s"))


def counts(metrics: str, name: str, label: str) -> dict[str, int]:
    """The values of a counter by one of its labels."""
    found = re.findall(rf'^{name}{{.*\b{label}="(\w+)".*}} ([\d.e+]+)$', metrics, re.MULTILINE)
    return {reason: int(float(value)) for reason, value in found}


def test_a_recording_has_the_numbers_of_the_moment_that_is_shown(
    visits: Visits, tmp_path: pathlib.Path
) -> None:
    run, path = recorded_run(), tmp_path / "report.html"
    path.write_bytes(make_report(run.header, run.records, FORMAT))
    page = open_recording(visits, path.as_uri())
    expect(number(page, "Finished")).to_have_text("0")
    expect(number(page, "TTFT, p50")).to_have_text("\u2013")
    press(page, "To the end")
    expect(number(page, "TTFT, p50")).to_have_text(SECONDS)
    expect(number(page, "ITL, p50")).to_have_text(SECONDS)
    expect(tile(page, "Finished")).to_contain_text("1 abort")
    expect(tile(page, "Refused")).to_have_count(0)


def test_the_engine_is_shown_first_and_explains_itself(visits: Visits, server: ServerProcess) -> None:
    page = visits.open(server.url)
    expect(page.get_by_role("tab", name="Engine")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".engine-state")).to_have_text("Ready")
    page.get_by_text("What am I looking at?").click()
    expect(page.locator(".engine-help")).to_contain_text("Preempted")
    link = page.locator(".engine-help").get_by_role("link").get_attribute("href")
    with server.client() as client:
        assert client.get(f"/{link}").status_code == 200
