"""The timeline under a pointer: it is dragged and zoomed; and where it stands on the page, beside the block map."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from nanoserve.entrypoints.page.inspect.report import make_report
from tests.browser.engine_page import NEXT_FRAMES, VIEW, open_engine
from tests.browser.sending import sender
from tests.browser.test_replay import open_recording, press
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess
from tests.unit.entrypoints.recorded_run import FORMAT, recorded_run

EXTENT = f"() => [{VIEW}.timeline.extent.from, {VIEW}.timeline.extent.to]"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    run, path = recorded_run(words=True), tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(make_report(run.header, run.records, FORMAT))
    return path.as_uri()


@pytest.fixture
def page(visits: Visits, report: str) -> Page:
    """A recording of more than a hundred steps, at its end."""
    page = open_recording(visits, report)
    press(page, "To the end")
    return page


def timeline(page: Page) -> Locator:
    return page.locator("[aria-roledescription='timeline']")


def extent(page: Page) -> list[int]:
    """The columns that are drawn: from, to."""
    page.evaluate(NEXT_FRAMES)
    found: list[int] = page.evaluate(EXTENT)
    return found


def pointer_at(page: Page, share: float) -> tuple[float, float]:
    """Move the pointer to a part of the steps' width."""
    box = timeline(page).bounding_box()
    scale: Any = page.evaluate(f"() => [{VIEW}.timeline.scale.left, {VIEW}.timeline.scale.end]")
    assert box is not None
    x, y = box["x"] + scale[0] + share * (scale[1] - scale[0]), box["y"] + 40
    page.mouse.move(x, y)
    return x, y


def test_the_wheel_zooms_around_the_pointer_until_there_is_nothing_left_to_zoom(page: Page) -> None:
    whole = extent(page)
    pointer_at(page, 0.5)
    column = page.evaluate(f"() => {VIEW}.timeline.cursor")
    page.mouse.wheel(0, -120)
    page.mouse.wheel(0, -120)
    page.wait_for_function(f"() => {VIEW}.timeline.window.zoom === 40")
    start, end = extent(page)
    assert end - start == 40 < whole[1] - whole[0]
    assert start < column < end
    page.evaluate("scrollTo(0, 0)")
    page.mouse.wheel(0, -120)
    page.wait_for_function(f"() => {VIEW}.timeline.window.zoom === 20")
    assert page.evaluate("scrollY") == 0
    for _ in range(8):
        page.mouse.wheel(0, 120)
    page.wait_for_function(f"() => {VIEW}.timeline.window.zoom === 1280")
    page.set_viewport_size({"width": 1280, "height": 500})
    pointer_at(page, 0.5)
    page.mouse.wheel(0, 240)
    page.wait_for_function("() => scrollY > 0")
    assert extent(page) == [0, whole[1]]


def test_a_drag_moves_the_steps_and_chooses_nothing(page: Page) -> None:
    for _ in range(2):
        page.get_by_role("button", name="Show fewer steps").click()
    start, end = extent(page)
    position = page.evaluate(f"() => {VIEW}.player.position")
    x, y = pointer_at(page, 0.25)
    page.mouse.down()
    width = page.evaluate(f"() => {VIEW}.timeline.scale.columnWidth")
    page.mouse.move(x + 5 * width, y)
    page.mouse.move(x + 10 * width, y)
    page.mouse.up()
    assert extent(page) == [start - 10, end - 10]
    assert page.evaluate(f"() => [{VIEW}.selected, {VIEW}.player.position]") == [None, position]
    page.mouse.click(x, y)
    assert page.evaluate(f"() => {VIEW}.selected") is not None, "a click still chooses"
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 120)
    page.keyboard.up("Shift")
    page.wait_for_function(f"end => {VIEW}.timeline.extent.to > end", arg=end - 10)


def test_a_drag_holds_a_live_view(visits: Visits, server: ServerProcess) -> None:
    page = open_engine(visits, server.url)
    with sender(server.url) as sending:
        sending.send([5, 6, 7], max_tokens=150)
    page.wait_for_function(
        f"() => {VIEW}.player.log.history.next > 140 && {VIEW}.replay.sequences.size === 0"
    )
    end = extent(page)[1]
    x, y = pointer_at(page, 0.25)
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.up()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert extent(page)[1] < end
    page.get_by_role("button", name="Resume").click()
    assert extent(page)[1] == end


@pytest.mark.parametrize("scheme", ["idle", "busy"])
def test_the_block_map_is_above_the_fold(visits: Visits, server: ServerProcess, scheme: str) -> None:
    page = open_engine(visits, server.url)
    if scheme == "busy":
        with sender(server.url) as sending:
            for number in range(12):
                sending.send([100 + number] * 20, max_tokens=20)
        page.wait_for_function(
            f"() => {VIEW}.player.log.history.rows.size >= 12 && {VIEW}.replay.sequences.size === 0"
        )
        page.evaluate(NEXT_FRAMES)
    for picture in ("timeline", "block map"):
        box = page.locator(f"[aria-roledescription='{picture}']").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 900, picture
    panels = page.locator(".engine-timeline, .engine-blocks").evaluate_all(
        "all => all.map((each) => [each.getBoundingClientRect().bottom, each.lastElementChild.getBoundingClientRect().bottom])"
    )
    assert all(bottom - last < 120 for bottom, last in panels), "no panel is half empty"
