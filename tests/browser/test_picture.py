"""A run as one picture, drawn by a real browser: every step and every block, in the colours of the page."""

from __future__ import annotations

import pathlib
from collections import Counter

import pytest
from PIL import Image
from playwright.sync_api import expect

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect.picture import HEIGHT, SCALE, WIDTH, draw
from nanoserve.entrypoints.page.inspect.report import make_report
from nanoserve.ports.trace import PlannedStep, Turn
from tests.browser.chromium import chromium_path
from tests.browser.visits import Visits
from tests.unit.entrypoints.recorded_run import FORMAT, RecordedRun, recorded_run

COLOURS = {
    "prefill": (0xD9, 0x73, 0x0D),
    "decode": (0x2F, 0x6F, 0xD0),
    "prefix hit": (0x1F, 0x8A, 0x4C),
    "preempted": (0xC5, 0x22, 0x1F),
    "first sequence": (0x57, 0x65, 0xC1),
    "shared": (0x1C, 0x1C, 0x1A),
}

FREE, CACHED, SHARED, HELD = range(4)


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run(num_blocks=24)


def test_a_picture_has_all_that_happened_in_it(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    chromium_path()
    path = tmp_path / "run.png"
    draw(make_report(run.header, run.records, FORMAT), str(path))
    with Image.open(path) as image:
        size, pixels = image.size, image.convert("RGB").tobytes()
    assert size == (round(WIDTH * SCALE), round(HEIGHT * SCALE))
    counts = Counter(zip(pixels[::3], pixels[1::3], pixels[2::3], strict=True))
    assert all(counts[colour] > 100 for colour in COLOURS.values()), {
        name: counts[colour] for name, colour in COLOURS.items()
    }


def test_the_page_to_print_shows_the_whole_run_and_nothing_to_press(
    run: RecordedRun, visits: Visits, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(make_report(run.header, run.records, FORMAT, caption="what <b> happened"))
    page = visits.open(f"{path.as_uri()}#print")
    expect(page.locator("#served")).to_have_text("what <b> happened")
    expect(page.get_by_role("img", name="Blocks over the steps")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    widths = page.locator("canvas[aria-label]").evaluate_all("all => all.map((each) => each.clientWidth)")
    assert len(widths) == 2
    assert len(set(widths)) == 1, "the steps of both pictures lie below each other"
    page.wait_for_function("document.querySelector('#engine-view').view.blocks.columns")
    columns = page.evaluate(
        "document.querySelector('#engine-view').view.blocks.columns.map(({ number, groups }) => [number, [...groups[0]]])"
    )
    assert [number for number, _ in columns] == list(range(len(columns)))
    assert [[min(cell, HELD) for cell in cells] for _, cells in columns] == expected_cells(run)


def expected_cells(run: RecordedRun) -> list[list[int]]:
    """After each step, block by block, as far as any is in use: free, cached, shared or held by one."""
    columns: list[list[int]] = []
    for record, books in walk(run):
        references, findable = books.references[0], books.findable[0]
        held = [block for block, count in references.items() if count]
        cells = [
            (HELD if references[block] == 1 else SHARED)
            if references[block]
            else CACHED
            if block in findable
            else FREE
            for block in range(1, max([0, *held, *findable]) + 1)
        ]
        planned = isinstance(record, Turn) and any(isinstance(each, PlannedStep) for each in record.happened)
        if planned:
            columns.append(cells)
        elif columns:
            columns[-1] = cells
    return columns
