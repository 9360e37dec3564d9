"""The API key: asked for where the server wants one, checked by the server, and kept in this tab only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess, server_process

KEY = "sk-browser-test"


@pytest.fixture(scope="module")
def locked(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("locked"), "--api-key", KEY) as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
def page(visits: Visits, locked: ServerProcess) -> Page:
    """The engine's view, which the server does not show without a key."""
    visits.expect_fault("status of 401")
    page = visits.open(f"{locked.url}/#engine")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("#key-input")).to_be_focused()
    return page


def give(page: Page, key: str) -> None:
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    dialog.get_by_label("API key", exact=True).fill(key)
    dialog.get_by_role("button", name="Use this key").click()


def expect_engine(page: Page) -> None:
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#engine-view")).to_contain_text("ready", ignore_case=True)


def test_a_key_that_cannot_be_right_is_refused_and_another_may_be_tried(page: Page) -> None:
    for key, problem in [
        ("", "Type a key first"),
        ("two words", "no spaces"),
        ("schlüssel", "plain characters"),
        ("sk-wrong", "does not know that key"),
    ]:
        give(page, key)
        expect(page.locator("#key-problem")).to_contain_text(problem)
        assert page.evaluate("sessionStorage.length") == 0
    give(page, KEY)
    expect_engine(page)


def test_the_key_is_kept_in_this_tab_and_nowhere_else_until_it_is_forgotten(
    page: Page, visits: Visits
) -> None:
    give(page, KEY)
    expect_engine(page)
    assert KEY in page.evaluate("Object.values(sessionStorage)")
    assert page.evaluate("document.cookie") == ""
    assert page.context.cookies() == []
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")
    assert page.evaluate("indexedDB.databases()") == []
    assert page.evaluate("caches.keys()") == []
    assert KEY not in page.url
    assert not [each for each in visits.requested if KEY in each]
    assert KEY not in page.content()
    page.reload()
    expect_engine(page)
    other = visits.again(page.context, page.url)
    expect(other.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Forget key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_the_dialog_needs_no_mouse(page: Page) -> None:
    dialog = page.get_by_role("dialog")
    for name in ("Not now", "Use this key"):
        page.keyboard.press("Tab")
        expect(dialog.get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    again = page.get_by_role("tabpanel", name="Engine").get_by_role("button", name="Enter a key")
    again.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#key-input")).to_be_focused()
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    expect_engine(page)


def test_a_server_without_keys_asks_for_none(visits: Visits, server: ServerProcess) -> None:
    page = visits.open(f"{server.url}/#engine")
    expect_engine(page)
    expect(page.get_by_role("button", name="Forget key")).to_be_hidden()
