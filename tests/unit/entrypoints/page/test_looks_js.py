"""Sequences that hold blocks at the same time look different, and each looks the same for its whole life."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nanoserve.entrypoints.compose.bootstrap import trace_format
from tests.unit.entrypoints.page.node import run_node
from tests.unit.entrypoints.page.stress import GROUPS, stress

NUM_COLOURS, NUM_LOOKS = 12, 36
FOLLOW = """
import { readFileSync } from "node:fs";
import { Replay } from "./replay.js";
import { TraceLog } from "./trace_log.js";
const [log, replay] = [new TraceLog(), new Replay()];
for (const line of readFileSync(0, "utf8").trim().split("\\n")) {
  log.append([JSON.parse(line)]);
  replay.apply(JSON.parse(line));
  const look = ({ key, phase }) => [log.history.idOf(key), phase, log.history.rows.get(log.history.idOf(key)).look];
  console.log(JSON.stringify([...replay.sequences.values()].map(look)));
}
"""
TAKE = """
import { Looks } from "./looks.js";
const looks = new Looks();
for (const give of JSON.parse(process.argv[2])) {
  if (give === null) console.log(looks.take());
  else looks.giveBack(give);
}
"""


def taken(folder: Path, moves: Sequence[int | None]) -> list[int]:
    """The looks that are taken; a number among the moves is given back."""
    return run_node(TAKE, [], folder, json.dumps(moves))


def test_no_two_look_alike_over_a_stress_run(tmp_path: Path) -> None:
    encode = trace_format().encode
    run = stress(GROUPS[0], depth=2, seed=3)
    kept: dict[str, int] = {}
    crowds = []
    for sequences in run_node(FOLLOW, [encode(record) for record in run.records], tmp_path):
        seen = {name: look for name, phase, look in sequences if phase == "running"}
        assert None not in seen.values()
        assert len(set(seen.values())) == len(seen), sequences
        assert all(kept.setdefault(name, look) == look for name, _, look in sequences if look is not None)
        crowds.append(len(seen))
    assert max(crowds) == 4
    assert len(set(kept.values())) == NUM_COLOURS, (
        "few sequences need no patterns, and take turns with the colours"
    )


def test_colours_come_before_patterns_and_all_before_any_again(tmp_path: Path) -> None:
    looks = taken(tmp_path, [None] * 2 * NUM_LOOKS)
    assert looks[:NUM_COLOURS] == list(range(NUM_COLOURS))
    assert sorted(looks[:NUM_LOOKS]) == sorted(looks[NUM_LOOKS:]) == list(range(NUM_LOOKS))


def test_what_was_given_back_is_taken_before_anything_twice_but_not_at_once(tmp_path: Path) -> None:
    """The next sequence must not be mistaken for the one that has just ended."""
    given_back = (0, 7, 20, 35)
    moves = [move for ended in given_back for move in (ended, None)]
    assert taken(tmp_path, [None] * NUM_LOOKS + moves)[NUM_LOOKS:] == list(given_back)
    (tmp_path / "few").mkdir()
    assert taken(tmp_path / "few", [None, 0, None, 1, None]) == [0, 1, 2]
