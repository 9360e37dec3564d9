"""The example program of docs/watch-a-request.md: the list, the files it writes, its errors."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

import pytest

from docs.examples.watch import EXPERIMENTS, Run, main
from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.compose.bootstrap import trace_format
from tests.process.command import PYTHON, run

Watch = Callable[..., tuple[str, str]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Watch:
    """Runs the program with such arguments; what it prints, and the error that it ends with."""

    def call(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["watch", *arguments])
        said: object = ""
        try:
            main()
        except SystemExit as end:
            said = "" if end.code == 2 else end.code
        shown = capsys.readouterr()
        return shown.out, f"{shown.err}{said}"

    return call


def test_alone_it_lists_the_experiments() -> None:
    done = run(command=(*PYTHON, "docs.examples.watch"))
    assert done.returncode == 0, done.stderr.decode()
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == list(EXPERIMENTS)


def test_it_says_what_happened_and_writes_every_file(watch: Watch, tmp_path: pathlib.Path) -> None:
    report, trace = tmp_path / "a.html", tmp_path / "a.jsonl.gz"
    shown, said = watch("cancel", "--report", str(report), "--trace", str(trace))
    assert said == ""
    lines = shown.splitlines()
    assert lines[0].startswith("cancel: a client leaves")
    assert " ".join(lines[3].split()) == "b 1 1-19 96 0 96 8 at step 20 abort, 19 tokens"
    file = TraceFile(str(trace), trace_format())
    (gone,) = [each for each in Run(file.header, list(file)).sequences.values() if each.name == "b"]
    assert (gone.stops, gone.returns) == ([19], [(20, 8)])
    assert b'id="trace"' in report.read_bytes()


def test_flags_change_the_experiment(watch: Watch) -> None:
    shown, said = watch("chunked-prefill", "--max-num-batched-tokens", "128", "--no-enable-prefix-caching")
    assert said == ""
    assert " 125 + 125 + 50 " in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("preemptoin",), "invalid choice: 'preemptoin'"),
        (("cancel", "--max-num-seq", "4"), "unrecognized arguments: --max-num-seq"),
        (("cancel", "--trace", "/nowhere/file"), "cannot write /nowhere/file"),
        (("preemption", "--num-kv-blocks", "8"), "Lower max_model_len"),
    ],
)
def test_errors_are_said_before_anything_runs(watch: Watch, arguments: tuple[str, ...], said: str) -> None:
    shown, error = watch(*arguments)
    assert said in error.splitlines()[-1]
    assert shown == ""
