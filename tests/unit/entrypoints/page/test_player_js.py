"""The page's player comes to the books of any moment, forwards and back, also where the oldest records were dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanoserve.entrypoints.compose.bootstrap import trace_format
from tests.unit.entrypoints.page.node import run_node
from tests.unit.entrypoints.page.stress import GROUPS, Run, stress

JUMPS = """
import { readFileSync } from "node:fs";
import { Player } from "./player.js";
import { TraceLog } from "./trace_log.js";
globalThis.cancelAnimationFrame = () => {};
const [start, ...records] = readFileSync(0, "utf8").trim().split("\\n").map((line) => JSON.parse(line));
const [isLive, isPaused] = ["live", "paused"].map((mode) => process.argv.includes(mode));
const log = new TraceLog(isLive ? 100 : Infinity, 16);
const player = new Player(log, { isLive });
const tell = () => console.log(JSON.stringify([player.position, player.replay.snapshot(), log.end - log.first]));
log.append([start]);
player.follow();
if (isPaused) player.pause();
for (const record of records) {
  log.append([record]);
  player.follow();
  if (isLive) tell();
}
if (isLive) player.pause();
for (let jump = 0; jump < 300; jump += 1) {
  player.seek(log.first + 1 + ((jump * 7919) % (log.end - log.first)));
  tell();
  player.step(jump % 2 ? 1 : -1);
  tell();
}
"""
EPOCHS = """
import { readFileSync } from "node:fs";
import { TraceLog } from "./trace_log.js";
const records = readFileSync(0, "utf8").trim().split("\\n").map((line) => JSON.parse(line));
const log = new TraceLog();
log.append(records);
const { columns, rows } = log.history;
const steps = columns.filter(({ gap }) => !gap);
const tokens = (column) => column.prefillTokens + column.decodeTokens;
const drawn = steps.map((column) => [...rows.values()].reduce((sum, row) => sum + row.spans.reduce((all, span) => {
  const isThere = span.from <= column.number && (span.to === null || span.to > column.number);
  if (!isThere || !["chunk", "decode"].includes(span.kind)) return all;
  return all + (span.length ?? 1);
}, 0), 0));
const steady = columns.map(({ number }, index) => number === index);
console.log(JSON.stringify([steps.map(tokens), drawn, steady.every(Boolean), [...rows.values()].map((row) => row.reason)]));
"""


@pytest.fixture(scope="module")
def run() -> Run:
    return stress(GROUPS[2], depth=2, seed=5)


def lines(run: Run) -> list[bytes]:
    encode = trace_format().encode
    return [encode(record) for record in run.records]


@pytest.mark.parametrize("mode", ["recording", "live"])
def test_every_jump_ends_at_the_books_of_that_moment(run: Run, mode: str, tmp_path: Path) -> None:
    encode = trace_format().encode
    told = run_node(JUMPS, lines(run), tmp_path, mode)
    assert len(told) >= 600
    for position, snapshot, kept in told:
        assert snapshot == json.loads(encode(run.books[position - 1])), f"at {position}"
        assert mode == "recording" or kept <= 100 * 9 // 8 + 16


def test_a_long_pause_keeps_more_of_a_live_log_but_not_all(run: Run, tmp_path: Path) -> None:
    kept = [entry[2] for entry in run_node(JUMPS, lines(run) * 4, tmp_path, "live", "paused")]
    assert 300 < max(kept) <= 400 * 9 // 8 + 16


def test_the_rows_add_up_to_what_each_step_computed(run: Run, tmp_path: Path) -> None:
    [[computed, drawn, is_steady, reasons]] = run_node(EPOCHS, lines(run), tmp_path)
    assert drawn == computed
    assert is_steady
    assert len(computed) > 100
    assert {"length", "abort", "error"} <= set(reasons)
