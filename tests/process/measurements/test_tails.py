"""`python -m benchmarks.tails` as a process."""

from __future__ import annotations

from tests.process.command import PYTHON, run

TINY = (*PYTHON, "benchmarks.tails", "shape:tiny", "--device", "cpu", "--last", "2", "--input-len", "8", "--rounds", "1")  # fmt: skip


def test_the_last_rows_of_each_crowd_stand_beside_a_batch_of_their_own() -> None:
    done = run("--crowds", "6", "9", "--early", "4", "--late", "24", command=TINY)
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode()
    assert "last 2 rows" in shown
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("\u2502")] == ["6", "9"]


def test_steps_of_the_whole_crowd_are_not_taken_for_its_tail() -> None:
    done = run("--crowds", "6", "--early", "24", "--late", "24", command=TINY)
    assert b"of the last 12 steps had 2 rows" in done.stderr
