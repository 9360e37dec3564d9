"""Where a part of the log is missing, the page neither mistakes another engine for the one before nor shows wrong words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.entrypoints.page.node import run_node

TELL = """
import { readFileSync } from "node:fs";
import { TraceLog } from "./trace_log.js";
const log = new TraceLog();
log.append(readFileSync(0, "utf8").trim().split("\\n").map((line) => JSON.parse(line)));
const { history, words } = log;
const rows = [...history.rows.values()].map(({ id, requestId, reason }) => [requestId, reason, words.read(id, 0, 4)]);
console.log(JSON.stringify([rows, history.columns.map(({ gap }) => gap).filter(Boolean)]));
"""


def snapshot(step: int, *sequences: tuple[int, str], generated: int = 0) -> list[Any]:
    living = [[key, name, 0, 2, 9, "running", key, 0, 2, 0, [[key + 1]]] for key, name in sequences]
    return ["snapshot", float(step), step, living, [[]], 0, {}, generated, 0, 0]


def arrival(key: int, name: str) -> list[Any]:
    happened = [["admit", key, key, 0, False], ["step", 6, [[key, 0, 2, True]], []]]
    words = [[key, [1, 2], {"1": "one ", "2": "two "}]]
    kv = [["give", key, 0, [[key + 1]]]]
    return ["turn", 6.0, [[key, name, 0, 2, 9]], happened, [], None, 0, kv, 0, 0, words]


def growth(step: int, *keys: int) -> list[Any]:
    happened = [["step", step, [], list(keys)]]
    words = [[key, [3], {"3": "three"}] for key in keys]
    return ["turn", float(step), [], happened, [], None, len(keys), [], 0, 0, words]


def tell(folder: Path, *records: list[Any]) -> Any:
    [told] = run_node(TELL, [json.dumps(each).encode() for each in records], folder)
    return told


@pytest.mark.parametrize(
    "later",
    [
        snapshot(3, (0, "other")),
        snapshot(90, (0, "other"), generated=50),
        snapshot(90, generated=2),
    ],
    ids=["fewer steps", "another one by this key", "fewer tokens"],
)
def test_another_engine_is_known_for_another(later: list[Any], tmp_path: Path) -> None:
    rows, gaps = tell(tmp_path, snapshot(5, (0, "first"), generated=9), growth(6, 0), later)
    assert gaps == ["restart"]
    assert rows[0][:2] == ["first", "restart"]
    assert [each[:2] for each in rows[1:]] == [["other", None]] * len(later[3])


def test_the_same_engine_is_known_again(tmp_path: Path) -> None:
    later = snapshot(90, (0, "first"), (3, "new"), generated=50)
    rows, gaps = tell(tmp_path, snapshot(5, (0, "first"), (1, "second"), generated=9), growth(6, 0, 1), later)
    assert gaps == ["gap"]
    assert [each[:2] for each in rows] == [["first", None], ["second", "unknown"], ["new", None]]


def test_only_words_that_are_all_there_are_shown(tmp_path: Path) -> None:
    """Who came before the log, or lived on through a gap in it, said something there that nobody knows."""
    records = [snapshot(5, (0, "old")), arrival(1, "seen"), growth(7, 0, 1)]
    rows, _ = tell(tmp_path, *records)
    assert [each[2] for each in rows] == ["", "one two three"]
    (tmp_path / "later").mkdir()
    rows, _ = tell(
        tmp_path / "later", *records, snapshot(20, (0, "old"), (1, "seen"), generated=20), growth(21, 0, 1)
    )
    assert [each[2] for each in rows] == ["", "one two three"]
