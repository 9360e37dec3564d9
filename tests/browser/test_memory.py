"""Ten minutes of a busy engine leave the page no larger: it keeps the last steps, and forgets the rest."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import CDPSession, Page

from tests.browser.engine_page import VIEW
from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess

STEPS_PER_SECOND, SECONDS = 100, 600
MOST_GROWTH: Final = 2_000_000
"""Bytes of the JavaScript heap between the time when the log is full and ten minutes of steps."""
MOUNT = """async () => {
  const { mountEngineView } = await import("/ui/engine/engine_view.js");
  const place = document.querySelector("#engine-view");
  place.view.destroy();
  const header = {
    version: 1, release: "0", started: "", model: "built-in", device: "cpu", dtype: "bfloat16", block_size: 16, num_blocks: 512,
    windows: [null], max_num_seqs: 8, max_num_batched_tokens: 512, max_model_len: 1024, prefix_caching: true, has_words: true,
  };
  const subscribe = (onRecords, onStatus, onHeader, onConnection) => {
    window.feed = onRecords;
    onHeader(header);
    onConnection("live");
    return () => {};
  };
  mountEngineView(place, { header: null, subscribe });
  feed([["snapshot", 0, 0, [], [[]], 0, {}, 0, 0, 0]]);
  window.fed = 0;
}"""
FEED = """async (steps) => {
  const [lives, tall, most] = [96, 6, 8]; // steps that a sequence lives, blocks that it holds, sequences at once
  const record = (step) => {
    const [arrived, happened, ended, kv, words] = [[], [], [], [], []];
    const isChange = step % (lives / most) === 1;
    const newest = Math.floor((step - 1) / (lives / most));
    const chunks = [];
    if (isChange) {
      if (newest >= most) ended.push([newest - most, "length", lives]);
      if (newest >= most) kv.push(["return", newest - most]);
      const blocks = Array.from({ length: tall }, (_, index) => 1 + (newest % (2 * most)) * tall + index);
      arrived.push([newest, `request-${newest}`, 0, 64, 64 + lives]);
      happened.push(["admit", newest, newest % most, 0, false]);
      kv.push(["give", newest, 0, [blocks]], ["share", newest, 4, []]);
      chunks.push([newest, 0, 64, true]);
      words.push([newest, Array.from({ length: 64 }, (_, token) => token), { 1: "one" }]);
    }
    const first = Math.max(newest - most + 1, 0);
    const living = Array.from({ length: newest - first + 1 }, (_, index) => first + index);
    const decoding = isChange ? living.slice(0, -1) : step % (lives / most) === 2 ? living : null;
    happened.push(["step", step, chunks, decoding]);
    for (const key of living) words.push([key, [key % 50], { [key % 50]: "word " }]);
    return ["turn", step / 100, arrived, happened, ended, step - 1 || null, living.length, kv, 0, 0, words];
  };
  for (let end = fed + steps; fed < end; ) {
    const part = Array.from({ length: 100 }, (_, index) => record(fed + index + 1));
    feed(part);
    fed += part.length;
    await new Promise((done) => requestAnimationFrame(done));
  }
}"""
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
