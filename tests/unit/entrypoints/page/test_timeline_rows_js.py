"""Which sequences the timeline draws where there is no room for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.entrypoints.page.node import run_node

ROOM = 95
ARRANGE = """
import { RANKS, TimelineRows } from "./timeline_rows.js";
const [numRunning, numQueued, chosen] = process.argv.slice(2).map(Number);
const ranks = [...Array(numQueued).fill("queued"), ...Array(numRunning).fill("running"), "ended", "preempted"];
const history = { rows: new Map(ranks.map((rank, serial) => [`${serial}`, {
  id: `${serial}`, serial, rank, born: 0, endedSerial: rank === "ended" ? 1e6 : Infinity, endedColumn: 5, spans: [
    { kind: "queued", from: 0, to: 9 }, { kind: "decode", from: 9, to: null }, // what will be is known already
  ]}])) };
const rows = new TimelineRows();
const rankOf = ({ rank, serial }) => (serial === chosen ? RANKS.chosen : RANKS[rank]);
rows.arrange(history, { from: 0, to: 9, position: 2e6, height: 380, glide: false, rankOf });
console.log(JSON.stringify([rows.numHidden, rows.drawn.map(({ row }) => [row.serial, row.rank])]));
"""


def arrange(folder: Path, *, running: int, queued: int, chosen: int = -1) -> tuple[int, list[list[Any]]]:
    [[hidden, drawn]] = run_node(ARRANGE, [], folder, str(running), str(queued), str(chosen))
    assert hidden == running + queued + 2 - len(drawn)
    assert drawn == sorted(drawn), "they stand in the order of their arrival"
    return hidden, drawn


def count(drawn: list[list[Any]], rank: str) -> int:
    return sum(each == rank for _, each in drawn)


@pytest.mark.parametrize("queued", [40, 3000])
def test_who_runs_is_drawn_however_many_wait(queued: int, tmp_path: Path) -> None:
    hidden, drawn = arrange(tmp_path, running=60, queued=queued)
    assert len(drawn) == min(ROOM, queued + 62)
    assert hidden
    assert count(drawn, "running") == 60
    assert count(drawn, "preempted") == count(drawn, "ended") == 1
    waiting = [serial for serial, rank in drawn if rank == "queued"]
    assert waiting == list(range(len(waiting))), "who has waited longest comes first"


def test_a_part_of_the_room_is_kept_for_those_who_wait(tmp_path: Path) -> None:
    _, drawn = arrange(tmp_path, running=300, queued=300)
    assert len(drawn) == ROOM
    assert count(drawn, "queued") == ROOM // 5


@pytest.mark.parametrize("chosen", [299, 450, 601])
def test_the_chosen_one_is_always_drawn(chosen: int, tmp_path: Path) -> None:
    _, drawn = arrange(tmp_path, running=300, queued=300, chosen=chosen)
    assert chosen in [serial for serial, _ in drawn]
