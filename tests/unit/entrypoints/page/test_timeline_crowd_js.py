"""How the timeline lays out a crowd: every row of the batch is in one strip, which has a name and leads to its sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.entrypoints.page.node import run_node

HEIGHT = 300
ARRANGE = """
import { TimelineCrowd } from "./timeline_crowd.js";
const [numSeats, numSteps] = process.argv.slice(2).map(Number);
const half = numSteps / 2;
const rowsOf = (seat) => [["first", 0, half], ["second", half, null]].map(([name, from, to]) => ({
  id: `${name} ${seat}`, spans: [{ kind: "queued", from: 0, to: from }, { kind: "decode", seat, from, to }],
}));
const alive = Array.from({ length: numSeats }, (_, seat) => rowsOf(seat)).flat();
const crowd = new TimelineCrowd();
crowd.arrange(alive, { from: 0, to: numSteps, height: 300 });
const strips = new Map();
for (let y = 0; y < crowd.height; y += 0.5) {
  if (crowd.seatsAt(y)[1] > 0) strips.set(crowd.nameAt(y), [y, ...crowd.seatsAt(y)]);
}
const ids = (column, y) => crowd.at(column, y).map(({ id }) => id);
console.log(JSON.stringify({
  height: crowd.height, lane: crowd.laneHeight,
  strips: [...strips].map(([name, [y, first, end]]) => ({ name, first, end, early: ids(0, y), late: ids(half, y) })),
  all: ids(half),
}));
"""


def arrange(folder: Path, seats: int) -> Any:
    [crowd] = run_node(ARRANGE, [], folder, str(seats), "10")
    return crowd


@pytest.mark.parametrize("seats", [3, 24, 25, 48, 64, 100, 256, 1000])
def test_every_row_is_in_one_strip_that_leads_to_its_sequence_at_each_step(
    seats: int, tmp_path: Path
) -> None:
    crowd = arrange(tmp_path, seats)
    strips = crowd["strips"]
    assert [seat for each in strips for seat in range(each["first"], each["end"])] == list(range(seats))
    for each in strips:
        inside = range(each["first"], each["end"])
        assert each["early"] == [f"first {seat}" for seat in inside]
        assert each["late"] == [f"second {seat}" for seat in inside]
        last = each["end"] - 1
        assert each["name"] == (f"row {last}" if len(inside) == 1 else f"rows {each['first']}\u2013{last}")
    assert crowd["all"] == [f"second {seat}" for seat in range(seats)], "the keyboard goes from row to row"


@pytest.mark.parametrize(("seats", "per_strip"), [(24, 1), (64, 1), (100, 8), (256, 16), (1000, 64)])
def test_strips_stay_high_enough_to_be_seen_and_named(seats: int, per_strip: int, tmp_path: Path) -> None:
    crowd = arrange(tmp_path, seats)
    assert crowd["strips"][0]["end"] == per_strip
    assert crowd["lane"] >= 12
    assert crowd["height"] <= HEIGHT + 80
