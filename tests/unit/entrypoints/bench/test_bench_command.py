"""`nanoserve bench` in this process, over an engine without torch: tables, the JSON file, and how mistakes are told."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from nanoserve.entrypoints.bench import tables
from nanoserve.entrypoints.bench.peers import PeerRuns
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.assembly import Ceilings, Survey
from nanoserve.ports.errors import StepFailedError
from tests.unit.entrypoints.bench.scripted_bench import scripted_parts
from tests.unit.entrypoints.scripted_world import SPEC, interrupt_in_turn

BenchRun = Callable[..., int]
SMALL = ("--num-prompts", "3", "--input-len", "8", "--output-len", "6")
FOUND = Survey(spec=SPEC, folder=None, device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(tables, "PIPE_SECONDS", 1e6)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> BenchRun:
    def run_over(parts: Any, *arguments: str) -> int:
        monkeypatch.setattr("nanoserve.entrypoints.bench.subject.survey", lambda _settings, _watch: FOUND)
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
    parts = scripted_parts(counts=True, ceilings=Ceilings(1e12, 1e14))
    assert bench(parts, "throughput", *SMALL, "--seeds", "2", "--json", str(path), "--profile") == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    for text in (
        "the built-in model, float32 on cpu; fixed: 3 x 8 -> 6, 2 seeds",
        "output tok/s",
        "host us per decode step",
        "fraction of the floor",
        "floor: reads at 1 TB/s, products at 100 TFLOP/s",
        "4 steps of 3 rows: 2.500 ms of kernels per step",
        "rest<T, [x]>",
        "80.0%",
    ):
        assert text in shown
    report = json.loads(path.read_text())
    assert report["benchmark"] == "throughput"
    assert report["command"].startswith("nanoserve")
    assert report["machine"]["packages"]["torch"]
    assert report["sampling"]["temperature"] == 0.6
    assert [each["seed"] for each in report["runs"]] == [1, 2]
    assert all(sum(each["turn_tokens"]) == each["output_tokens"] == 18 for each in report["runs"])
    assert all(sum(each["turn_prompt_tokens"]) == each["prompt_tokens"] == 24 for each in report["runs"])
    assert all(each["cached_tokens"] == 0 for each in report["runs"])
    assert report["summary"]["output_tok_s"]["median"] > 0
    assert report["profile"]["kernels"][0] == {"name": "products", "calls": 10, "seconds": 0.008}


def test_a_profile_of_prompts_alone(bench: BenchRun, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("throughput", "--workload", "prefill", "--num-prompts", "2", "--input-len", "20")
    parts = scripted_parts()
    assert bench(parts, *arguments, "--profile", "--seeds", "1") == 0
    assert not parts.engine.has_work
    shown = capsys.readouterr().out
    assert "prefill: 2 x 20 -> 1" in shown
    assert "1 steps of 2 rows: 10.000 ms of kernels per step\n" in shown


def test_latency_prints_a_row_per_batch(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "out.json"
    parts = scripted_parts(ceilings=Ceilings(1e12, None))
    arguments = ("--batch-sizes", "1,5", "--input-len", "8", "--output-len", "6", "--json", str(path))
    assert bench(parts, "latency", *arguments, "--profile") == 0
    shown = capsys.readouterr().out
    assert "8 -> 6, 3 seeds" in shown
    assert shown.count("ms of kernels per step") == 2
    report = json.loads(path.read_text())
    assert set(report["summary"]) == set(report["runs"]) == set(report["profiles"]) == {"1", "5"}
    assert [run["cached_tokens"] for runs in report["runs"].values() for run in runs] == [0] * 6
    assert report["summary"]["5"]["itl_p99_ms"]["median"] > 0
    assert report["summary"]["5"]["floor_fraction"]["median"] > 0


def test_a_peer_stands_beside_us(
    bench: BenchRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_peer(peer: str, found: object, settings: object, sampling: object, loads: list[Any]) -> PeerRuns:
        return PeerRuns(name=peer, version="1", load_seconds=1.0, seconds=[2.0] * len(loads))

    monkeypatch.setattr("nanoserve.entrypoints.bench.command.run_peer", run_peer)
    assert bench(scripted_parts(), "throughput", *SMALL, "--vs", "hf") == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if "output tok/s" in each)
    assert [each.strip() for each in line.split("│")][5] == "9"
    sizes = ("--batch-sizes", "1,2", "--input-len", "8", "--output-len", "6")
    assert bench(scripted_parts(), "latency", *sizes, "--vs", "hf") == 0
    shown = capsys.readouterr().out
    assert "hf E2E ms" in shown
    assert "2,000" in shown


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
        (("throughput", *SMALL, "--bandwidth", "0"), "bandwidth: must be above 0"),
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


def test_an_engine_that_is_not_installed_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("nanoserve.entrypoints.bench.subject.survey", load)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run_command(["bench", "throughput", "--vs", "vllm"]) == 2
    message = "vllm is not installed in this environment (pip install vllm)"
    assert capsys.readouterr().err == f"nanoserve: vs: vllm cannot be measured: {message}\n"


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    bench: BenchRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(None, "throughput", *SMALL, "--json", "/no/such/folder/x.json") == 1
    assert capsys.readouterr().err == "nanoserve: /no/such/folder/x.json: No such file or directory\n"


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
