"""A table that processes share: nothing is lost, one at a time where it must be, and one that dies holds up nobody."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from nanoserve.adapters.system.shared_table import SharedTable
from nanoserve.ports.counts import Counts

COLUMNS = {"first": ("a", "b"), "second": ("c",)}
SETUP = """
import os, signal, sys
from nanoserve.adapters.system.shared_table import SharedTable
table = SharedTable(int(sys.argv[1]), {"first": ("a", "b"), "second": ("c",)}, 3)
"""
ADDING = """
own, common = table.row(int(sys.argv[2]), "second"), table.row(0, "first")
table.row(int(sys.argv[2]), "first")["b"] = 1
while sum(table.row(row, "first")["b"] for row in range(3)) < 2:
    pass
for _ in range(50_000):
    own["c"] += 1
    with table.lock:
        common["a"] += 1
"""
DYING = """
table.lock.__enter__()
table.row(1, "first")["b"] = 5
os.kill(os.getpid(), signal.SIGKILL)
"""


def started(table: SharedTable, program: str, *arguments: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SETUP + program, str(table.descriptor), *map(str, arguments)]
    return subprocess.Popen(command, pass_fds=(table.descriptor,))


def test_what_several_processes_count_adds_up() -> None:
    table = SharedTable.create(COLUMNS, 3)
    children = [started(table, ADDING, row) for row in (1, 2)]
    assert [each.wait() for each in children] == [0, 0]
    assert [table.row(row, "second")["c"] for row in range(3)] == [0, 50_000, 50_000]
    assert table.row(0, "first")["a"] == 100_000


def test_a_process_that_is_killed_leaves_its_numbers_and_not_the_lock() -> None:
    table = SharedTable.create(COLUMNS, 3)
    assert started(table, DYING).wait() == -signal.SIGKILL
    with table.lock:
        assert dict(table.row(1, "first")) == {"a": 0, "b": 5}


def test_rows_and_groups_do_not_touch() -> None:
    table = SharedTable.create(COLUMNS, 3)
    for row in range(3):
        table.row(row, "first")["b"] = row
        table.reals(row, "second")[0] = row + 0.5
    assert [[*table.cells(row, "first")] for row in range(3)] == [[0, 0], [0, 1], [0, 2]]
    assert [[*table.reals(row, "second")] for row in range(3)] == [[0.5], [1.5], [2.5]]
    own = table.row(1, "first")
    own.update(dict.fromkeys(own, 0))
    assert [table.row(row, "first")["b"] for row in range(3)] == [0, 0, 2]
    with pytest.raises(KeyError):
        table.row(0, "first")["c"]
    with pytest.raises(TypeError):
        del table.row(0, "first")["a"]


class Moving(dict[str, int]):
    """Another process's numbers, of which a sequence moves from one to the other while they are read."""

    def __init__(self, moves: int) -> None:
        super().__init__(waiting=10, ended=0)
        self._moves = moves

    def __getitem__(self, name: str) -> int:
        seen = super().__getitem__(name)
        if self._moves and name == "ended":
            self._moves -= 1
            self["waiting"], self["ended"] = super().__getitem__("waiting") - 1, seen + 1
        return seen


@pytest.mark.parametrize("names", [("waiting", "ended"), ("ended", "waiting")])
def test_numbers_that_are_read_together_are_of_one_moment(names: tuple[str, ...]) -> None:
    counts = Counts({"waiting": 0, "ended": 0}, [Moving(3)])
    seen = counts.read(names)
    assert seen == {"waiting": 7, "ended": 3}
