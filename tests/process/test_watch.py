"""`nanoserve watch` as a process: the list, the files it writes, its errors."""

from __future__ import annotations

import pathlib

import pytest

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.entrypoints.offline.experiments.experiment import EXPERIMENTS
from nanoserve.entrypoints.offline.experiments.history import RunHistory
from tests.process.command import error_line, run


def test_alone_it_lists_the_experiments() -> None:
    done = run("watch")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == [
        each.name for each in EXPERIMENTS
    ]


def test_it_says_what_happened_and_writes_every_file(tmp_path: pathlib.Path) -> None:
    report, trace = tmp_path / "a.html", tmp_path / "a.jsonl.gz"
    done = run("watch", "cancel", "--report", str(report), "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
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
    done = run("watch", "chunked-prefill", "--max-num-batched-tokens", "128")
    assert done.returncode == 0, done.stderr
    assert b" 125 + 125 + 50 " in done.stdout
    shown = run(
        "watch", "chunked-prefill", "--max-num-batched-tokens", "128", "--print-config"
    ).stdout.decode()
    origins = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.splitlines()}
    assert origins["max_num_batched_tokens"] == ["128", "--max-num-batched-tokens"]
    assert origins["max_num_seqs"] == ["8", "the experiment chunked-prefill"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("preemptoin",), 2, "must be one of prefix-hit"),
        (("cancel", "--trace", "/nowhere/file"), 2, "cannot write /nowhere/file"),
        (("cancel", "--report", "/nowhere/file.html"), 2, "cannot write /nowhere/file.html"),
        (("preemption", "--num-kv-blocks", "8"), 1, "Lower max_model_len"),
    ],
)
def test_errors_are_one_line_before_anything_runs(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run("watch", *arguments)
    assert done.returncode == code
    assert said in error_line(done)
