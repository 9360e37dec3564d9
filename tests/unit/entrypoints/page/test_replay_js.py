"""The page's replay.js comes to the very books that the engine had, after every turn of a stress run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.trace import BlockDropped, BlocksShared, Snapshot, StateCopied, StateHeld, Turn
from tests.unit.entrypoints.page.node import run_node
from tests.unit.entrypoints.page.stress import GROUPS, Run, stress

FOLLOW = """
import { createInterface } from "node:readline";
import { Replay } from "./replay.js";
const replay = new Replay();
const restored = new Replay();
for await (const line of createInterface({ input: process.stdin })) {
  const record = JSON.parse(line);
  replay.apply(record);
  restored.apply(record);
  restored.restore(JSON.parse(JSON.stringify(restored.checkpoint())));
  console.log(JSON.stringify([replay.snapshot(), restored.snapshot(), replay.countPhases(), restored.countPhases()]));
}
"""


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", GROUPS, ids=["full", "window", "full+window", "two windows", "full+state"])
def test_the_books_are_the_engines_after_every_turn(
    groups: tuple[CacheGroup, ...], depth: int, tmp_path: Path
) -> None:
    encode, run = trace_format().encode, stress(groups, depth, seed=depth)
    assert_eventful(run, groups)
    followed = run_node(FOLLOW, [encode(record) for record in run.records], tmp_path)
    assert len(followed) == len(run.records)
    for number, (books, (seen, restored, *counts)) in enumerate(zip(run.books, followed, strict=True)):
        expected = json.loads(encode(books))
        assert seen == expected, f"after record {number}: {run.records[number]}"
        assert restored == expected, f"restored after record {number}"
        phases = [sequence[5] for sequence in expected[3]]
        counted = {phase: phases.count(phase) for phase in ("waiting", "running", "preempted")}
        assert counts == [counted, counted], f"after record {number}"


def assert_eventful(run: Run, groups: tuple[CacheGroup, ...]) -> None:
    """A run in which nothing happens would show nothing."""
    changes = [change for record in run.records if isinstance(record, Turn) for change in record.kv]
    assert sum(isinstance(record, Snapshot) for record in run.records) > 1
    assert sum(books.preemptions for books in run.books) > 10
    assert max(books.prefix_hits for books in run.books) > 0
    assert {"length", "abort", "error", "timeout"} <= set().union(*(books.finished for books in run.books))
    assert any(isinstance(change, BlocksShared) and change.swapped for change in changes)
    kinds = {type(group.kind) for group in groups}
    assert any(isinstance(change, BlockDropped) for change in changes) == (Window in kinds)
    assert any(isinstance(change, StateCopied) for change in changes) == (Recurrent in kinds)
    assert any(isinstance(change, StateHeld) and change.snapshot for change in changes) == (
        Recurrent in kinds
    )
