"""The engine's view as tests read it: what it says in the page, and the books that it is drawn from."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
from playwright.sync_api import Page, expect

from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.ports.trace import Snapshot
from tests.browser.stepped_server import SteppedServer
from tests.browser.visits import Visits

VIEW = "document.querySelector('#engine-view').view"
LOG_END = f"{VIEW}.player.log.end"
NEXT_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WAITING, RUNNING = "Waiting", "Running"


def script(name: str) -> str:
    """A file of `scripts/`: JavaScript for the page, or what its accessibility tree must be."""
    return (pathlib.Path(__file__).with_name("scripts") / name).read_text()


REMEMBER_STATES = script("remember_states.js")
"""Keeps every text of the banner, from now on, in `window.states`."""


def open_engine(visits: Visits, url: str, **options: Any) -> Page:
    """The engine's view of a server that is ready."""
    page = visits.open(f"{url.rstrip('/')}/#engine", **options)
    expect(page.locator(".engine-state")).to_have_text("Ready")
    expect(page.locator(".engine-about")).to_contain_text("built-in")
    return page


def wait_for_step(page: Page, step: int) -> None:
    """Until the view has come as far as this step."""
    page.wait_for_function(f"step => {VIEW}.replay.step >= step && {VIEW}.replay.committed >= step", arg=step)


def shown_books(page: Page) -> Any:
    """The books that the view shows, as the log would write them."""
    return page.evaluate(f"{VIEW}.replay.snapshot()")


def written(books: Snapshot) -> Any:
    """A snapshot as the log writes it."""
    return json.loads(trace_format().encode(books))


def assert_same_books(page: Page, server: SteppedServer, *, by_snapshot: bool = False) -> None:
    """What the page shows is what the engine, which is held, has in its books now; a snapshot tells of no step's end."""
    step = server.engine.scheduler.table.step
    if by_snapshot:
        page.wait_for_function(f"step => {VIEW}.replay.step >= step", arg=step)
    else:
        wait_for_step(page, step)
    shown = shown_books(page)
    assert shown == written(attrs.evolve(read_snapshot(server.engine.scheduler, at=0.0), at=shown[1]))


def table(page: Page, summary: str) -> list[list[str]]:
    """The cells of one of the view's tables, row by row; it is opened first."""
    details = page.locator("details.engine-table", has_text=summary)
    details.evaluate("each => { each.open = true }")
    expect(details.locator("table")).to_be_visible()
    page.evaluate(NEXT_FRAMES)
    rows: list[list[str]] = details.locator("tbody").evaluate(
        "body => [...body.rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return rows


def block_tables(page: Page) -> dict[str, list[int]]:
    """What the block map says, in its table: the blocks of each sequence's table by its name."""
    return {
        name: [int(block) for block in blocks.split()]
        for name, _, _, blocks in table(page, "Block map as a table")
    }


def block_facts(page: Page, block: int) -> str:
    """What the block map says of one block when the keyboard has moved to it."""
    page.locator("[aria-roledescription='block map']").focus()
    page.keyboard.press("Home")
    for _ in range(block - 1):
        page.keyboard.press("ArrowRight")
    facts = page.locator("#engine-block-facts")
    expect(facts).to_contain_text(f"Block {block}:")
    return facts.inner_text()


def count(page: Page, title: str) -> Any:
    """The number beside `Running` or `Waiting`."""
    return page.get_by_role("heading", name=title).locator(".engine-count")
