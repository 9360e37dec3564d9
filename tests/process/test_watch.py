"""The example program of docs/watch-a-request.md as a process: the list, the files it writes, its errors."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from docs.examples.watch.experiment import EXPERIMENTS
from docs.examples.watch.history import RunHistory
from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.compose.bootstrap import trace_format
from tests.patience import PATIENCE
from tests.process.command import environment


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "docs.examples.watch", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=5 * PATIENCE,
        check=False,
    )


def test_alone_it_lists_the_experiments() -> None:
    done = watch()
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [each.name for each in EXPERIMENTS]


def test_it_says_what_happened_and_writes_every_file(tmp_path: pathlib.Path) -> None:
    report, trace = tmp_path / "a.html", tmp_path / "a.jsonl.gz"
    done = watch("cancel", "--report", str(report), "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cancel: a client leaves")
    assert lines[3].split() == [
        "b",
        "1",
        "1-19",
        "96",
        "0",
        "96",
        "8",
        "at",
        "step",
        "20",
        "abort,",
        "19",
        "tokens",
    ]
    file = TraceFile(str(trace), trace_format())
    assert RunHistory(file.header, file).sequence("b").ended == 20
    assert b'id="trace"' in report.read_bytes()


def test_flags_change_the_experiment() -> None:
    done = watch("chunked-prefill", "--max-num-batched-tokens", "128", "--no-enable-prefix-caching")
    assert done.returncode == 0, done.stderr
    assert " 125 + 125 + 50 " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("preemptoin",), "invalid choice: 'preemptoin'"),
        (("cancel", "--max-num-seq", "4"), "unrecognized arguments: --max-num-seq"),
        (("cancel", "--trace", "/nowhere/file"), "cannot write /nowhere/file"),
        (("preemption", "--num-kv-blocks", "8"), "Lower max_model_len"),
    ],
)
def test_errors_are_said_before_anything_runs(arguments: tuple[str, ...], said: str) -> None:
    done = watch(*arguments)
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]
    assert done.stdout == ""
