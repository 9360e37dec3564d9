"""`nanoserve bench` in this process, over an engine without torch: tables, the JSON file, and how mistakes are told."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from nanoserve.entrypoints.bench import report
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.ports.errors import StepFailedError
from tests.unit.entrypoints.bench.scripted_bench import scripted_parts
from tests.unit.entrypoints.scripted_world import SPEC, interrupt_in_turn

BenchRun = Callable[..., int]
SMALL = ("--num-prompts", "3", "--input-len", "8", "--output-len", "6")
FOUND = Survey(spec=SPEC, folder=None, device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(report, "PIPE_SECONDS", 1e6)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> BenchRun:
    def run_over(parts: Any, *arguments: str) -> int:
        monkeypatch.setattr("nanoserve.entrypoints.bench.command.survey", lambda _settings, _watch: FOUND)
        place = "nanoserve.entrypoints.bench.command.assemble_bench"

        monkeypatch.setattr(place, lambda _settings: parts)
        try:
            return run_command(["bench", *arguments])
        except SystemExit as ended:
            return int(ended.code or 0)

    return run_over


def test_throughput_prints_a_table_and_writes_every_number(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "out.json"
    parts = scripted_parts(counts=True)
    assert bench(parts, "throughput", *SMALL, "--seeds", "2", "--json", str(path)) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    for text in (
        "the built-in model, float32 on cpu; fixed: 3 x 8 -> 6, 2 seeds",
        "output tok/s",
        "host us per decode step",
    ):
        assert text in shown
    written = json.loads(path.read_text())
    assert written["benchmark"] == "throughput"
    assert written["command"].startswith("nanoserve")
    assert written["machine"]["packages"]["torch"]
    assert written["sampling"]["temperature"] == 0.6
    assert [each["seed"] for each in written["runs"]] == [1, 2]
    assert all(sum(each["turn_tokens"]) == each["output_tokens"] == 18 for each in written["runs"])
    assert all(sum(each["turn_prompt_tokens"]) == each["prompt_tokens"] == 24 for each in written["runs"])
    assert all(each["cached_tokens"] == 0 for each in written["runs"])
    assert written["summary"]["output_tok_s"]["median"] > 0


def test_latency_prints_a_row_per_batch(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "out.json"
    arguments = ("--batch-sizes", "1,5", "--input-len", "8", "--output-len", "6", "--json", str(path))
    assert bench(scripted_parts(), "latency", *arguments) == 0
    shown = capsys.readouterr().out
    assert "8 -> 6, 3 seeds" in shown
    written = json.loads(path.read_text())
    assert set(written["summary"]) == set(written["runs"]) == {"1", "5"}
    assert [run["cached_tokens"] for runs in written["runs"].values() for run in runs] == [0] * 6
    assert written["summary"]["5"]["itl_p99_ms"]["median"] > 0


def test_the_temperature_is_the_benchmarks_own_unless_somebody_sets_one(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def temperature(*arguments: str) -> list[str]:
        assert bench(None, "latency", "--print-config", *arguments) == 0
        rows = {each.split()[0]: each.split(maxsplit=2)[1:] for each in capsys.readouterr().out.splitlines()}
        assert rows["batch_sizes"] == ["1,8,64", "default"]
        assert rows["depth"] == ["auto", "default"]
        assert "workload" not in rows
        return rows["temperature"]

    assert temperature() == ["0.6", "nanoserve bench latency"]
    assert temperature("--temperature", "0") == ["0.0", "--temperature"]
    monkeypatch.setenv("NANOSERVE_TEMPERATURE", "1.0")
    assert temperature() == ["1.0", "NANOSERVE_TEMPERATURE"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("throughput", "--num-prompts", "0"), "num_prompts: must be at least 1, got 0 (from --num-prompts)"),
        (
            ("throughput", "--workload", "all"),
            "workload: must be one of fixed, nano, prefill, long, got 'all'",
        ),
        (("throughput", "--input-len", "128"), "input_len: the longest sequence has 384 tokens"),
        (("throughput", *SMALL, "--max-model-len", "13"), "input_len: the longest sequence has 14 tokens"),
        (("throughput", *SMALL, "--temperature", "-1"), "temperature: must be"),
        (("latency", "--batch-sizes", "1,0"), "batch_sizes: takes integers from 1"),
        (
            ("latency", "--batch-sizes", "9", "--input-len", "8", "--output-len", "6", "--max-num-seqs", "8"),
            "batch_sizes: 9 is more than max_num_seqs, 8",
        ),
        (("speed",), "No such command"),
    ],
)
def test_a_mistake_is_one_clear_line(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert bench(None, *arguments) == 2
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert errors.startswith(f"nanoserve: {message}")
    assert errors.count("\n") == 1


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    bench: BenchRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(None, "throughput", *SMALL, "--json", "/no/such/folder/x.json") == 1
    assert capsys.readouterr().err == "nanoserve: /no/such/folder/x.json: No such file or directory\n"


def test_a_disk_that_is_full_at_the_end_is_named_by_its_file(
    bench: BenchRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(scripted_parts(), "throughput", *SMALL, "--seeds", "1", "--json", "/dev/full") == 1
    assert "nanoserve: /dev/full: No space left on device\n" in capsys.readouterr().err


def test_a_run_that_fails_leaves_no_file(
    bench: BenchRun, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = scripted_parts()
    interrupt_in_turn(parts.engine, 4, monkeypatch)
    assert bench(parts, "throughput", *SMALL, "--json", str(tmp_path / "x.json")) == 130
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_and_failures_are_one_line(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = scripted_parts()
    interrupt_in_turn(parts.engine, 4, monkeypatch)
    assert bench(parts, "throughput", *SMALL) == 130
    assert capsys.readouterr() == ("", "nanoserve: interrupted\n")
    broken = scripted_parts(fail_at={2: StepFailedError("broken", (0,))})
    assert bench(broken, "throughput", *SMALL) == 1
    assert capsys.readouterr().err.startswith("nanoserve: 1 of 3 sequences failed")
