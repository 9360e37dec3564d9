"""Which steps the timeline shows, and the round numbers on its axes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.entrypoints.page.node import run_node

WINDOW = """
import { readFileSync } from "node:fs";
import { TimelineWindow } from "./timeline_window.js";
const shown = new TimelineWindow(40);
for (const [name, ...values] of JSON.parse(readFileSync(0, "utf8"))) {
  const result = shown[name](...values);
  if (name === "range") console.log(JSON.stringify([result.from, result.to]));
}
"""
TICKS = """
import { readFileSync } from "node:fs";
import { roundTicks, roundUp } from "./ticks.js";
const [from, to, most] = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify([roundTicks(from, to, most).map(({ text }) => text), roundUp(to)]));
"""


def place(now: int, end: int = 500, *, first: int = 0, follows: bool = False) -> list[Any]:
    return ["range", {"first": first, "next": end, "now": now, "follows": follows}]


@pytest.mark.parametrize(
    ("moves", "shown"),
    [
        ([place(500, follows=True)], [460, 500]),
        ([place(12, 12, follows=True)], [0, 12]),
        ([place(10)], [0, 40]),
        ([place(300)], [260, 300]),
        ([place(300), ["pan", -50], place(300)], [210, 250]),
        ([place(300), ["pan", 900], place(300)], [460, 500]),
        ([place(300), ["pan", -900], place(300)], [0, 40]),
        ([place(300), ["pan", -50], place(300), place(230)], [210, 250]),
        ([place(300), ["pan", -50], place(300), place(301)], [261, 301]),
        ([place(300), ["pan", -50], place(300), place(500, follows=True)], [460, 500]),
        ([place(300), ["zoomBy", -1], place(300)], [280, 300]),
        ([place(300), ["zoomBy", -1, 270], place(300)], [265, 285]),
        ([place(300), ["zoomBy", 1, 270], place(300)], [250, 330]),
        ([place(20), ["lookAt", 20], place(20)], [0, 40]),
        ([place(200), ["lookAt", 200], place(200)], [170, 210]),
        ([place(300), ["pan", -280], place(300), place(300, first=100)], [100, 140]),
    ],
)
def test_the_window_stays_in_the_log_and_finds_the_present_again(
    moves: list[list[Any]], shown: list[int], tmp_path: Path
) -> None:
    assert run_node(WINDOW, [json.dumps(moves).encode()], tmp_path)[-1] == shown


@pytest.mark.parametrize(
    ("range_", "texts"),
    [
        ((0, 10, 5), ["0", "2", "4", "6", "8", "10"]),
        ((13.37, 14.9, 8), ["13.4", "13.6", "13.8", "14.0", "14.2", "14.4", "14.6", "14.8"]),
        ((0.0012, 0.0031, 4), ["0.0015", "0.0020", "0.0025", "0.0030"]),
        ((480, 1320, 9), ["500", "600", "700", "800", "900", "1000", "1100", "1200", "1300"]),
        ((5, 5, 3), ["5.000000000"]),
    ],
)
def test_ticks_are_round(range_: tuple[float, float, int], texts: list[str], tmp_path: Path) -> None:
    [[found, up]] = run_node(TICKS, [json.dumps(range_).encode()], tmp_path)
    assert found == texts
    assert up >= range_[1]
    assert f"{up:e}"[0] in "125"
