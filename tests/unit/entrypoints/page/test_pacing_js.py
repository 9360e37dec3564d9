"""A stream is shown in the order in which it came, all of it, and in few pieces where the page is slow."""

from __future__ import annotations

from pathlib import Path

from tests.unit.entrypoints.page.node import run_node

PACE = """
import { Pacer } from "./page/pacing.js";
const shown = [];
const pacer = new Pacer((all) => {
  shown.push(all);
  const end = performance.now() + 20; // a page that is slow
  while (performance.now() < end);
});
for (let each = 0; each < 1000; each += 1) {
  if (each % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
  pacer.add(each);
}
pacer.flush();
pacer.flush();
setTimeout(() => console.log(JSON.stringify(shown)), 200);
"""


def test_nothing_is_lost_and_what_comes_together_is_shown_together(tmp_path: Path) -> None:
    [shown] = run_node(PACE, [], tmp_path)
    assert [each for pieces in shown for each in pieces] == list(range(1000))
    assert all(shown)
    assert len(shown) <= 10
