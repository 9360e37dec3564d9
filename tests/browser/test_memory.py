"""Ten minutes of a busy engine leave the page no larger: it keeps the last steps, and forgets the rest."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import CDPSession, Page

from tests.browser.engine_page import VIEW, script
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

STEPS_PER_SECOND, SECONDS = 100, 600
MOST_GROWTH: Final = 2_000_000
"""Bytes of the JavaScript heap between the time when the log is full and ten minutes of steps."""
MOUNT = script("mount.js")
FEED = script("feed.js")
"""Eight sequences at a time, each with its blocks and its words; a hundred steps between two pictures."""


@pytest.mark.slow
def test_the_page_does_not_grow(visits: Visits, server: ServerProcess) -> None:
    page = visits.open(f"{server.url}/#engine")
    page.wait_for_function("() => document.querySelector('#engine-view').view?.replay.at > 0")
    page.evaluate(MOUNT)
    session = page.context.new_cdp_session(page)
    steps = STEPS_PER_SECOND * SECONDS
    page.evaluate(FEED, steps // 4)
    feed_until_the_oldest_go(page)
    before = heap(session)
    page.evaluate(FEED, steps - steps // 4)
    feed_until_the_oldest_go(page)
    after = heap(session)
    assert page.evaluate(f"{VIEW}.replay.step") >= steps
    assert page.evaluate(f"{VIEW}.player.log.first") > steps // 2, "the oldest are gone"
    assert after - before < MOST_GROWTH


def feed_until_the_oldest_go(page: Page) -> None:
    """Until the log, which drops its oldest records in one go, is as short as it gets."""
    first = page.evaluate(f"{VIEW}.player.log.first")
    while page.evaluate(f"{VIEW}.player.log.first") == first:
        page.evaluate(FEED, 100)


def heap(session: CDPSession) -> int:
    """Bytes that are in use when all garbage is collected."""
    session.send("HeapProfiler.enable")
    session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    return used
