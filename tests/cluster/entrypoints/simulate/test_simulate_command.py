"""`nanoserve simulate` and `nanoserve bench calibrate` in this process."""

from __future__ import annotations

import contextlib
import json
import pathlib

import pytest

from nanoserve.entrypoints.app.traces.writer import TraceWriter
from nanoserve.entrypoints.bench import report as tables
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.bootstrap import trace_format
from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.ports.trace import TraceHeader
from nanoserve_cluster.entrypoints.simulate.hardware import GPUS, kv_blocks, step_cost
from nanoserve_cluster.ports.step_cost import StepWork
from tests.cluster.domain.simulation.small_cluster import TRUE, recorded

SMALL = ("simulate", "--model", "shape:llama-3.1-70b", "--gpu", "h200", "--gpus-per-replica", "2")
BRIEF = ("--duration", "20", "--rate", "1", "--replicas", "2")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(tables, "PIPE_SECONDS", 1e6)


def run(*arguments: str) -> int:
    try:
        return run_command(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_a_run_prints_a_table_and_writes_the_same_figures_every_time(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    options = ("--fail", "1@8+5", "--routing", "all", "--slo", "ttft:60000", "--report-delay-ms", "100")
    reports = []
    for name in ("first", "second"):
        path = tmp_path / name
        plot = ("--plot", str(tmp_path / "plot.png")) if name == "first" else ()
        assert run(*SMALL, *BRIEF, *options, "--json", str(path), *plot) == 0
        reports.append(json.loads(path.read_text()))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    shown, errors = capsys.readouterr()
    assert errors == ""
    assert reports[0]["runs"] == reports[1]["runs"]
    assert [each["policy"] for each in reports[0]["runs"]] == [
        "round-robin",
        "least-running",
        "bounded-hash",
        "longest-prefix",
        "lmetric",
    ]
    assert {each["lost"] for each in reports[0]["runs"]} == {0}
    assert max(each["retried"] for each in reports[0]["runs"]) > 0
    for text in (
        "shape:llama-3.1-70b on 2 x h200",
        "lmetric: 2 replicas are enough for 90%",
        "retried",
        "lost",
    ):
        assert text in shown


def test_a_trace_file_and_the_fewest_replicas(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    trace = tmp_path / "azure.csv"
    lines = [f"2024-01-01 00:00:{second:02},{4000 + second},200" for second in range(60)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    options = ("--requests", str(trace), "--routing", "least-running", "--replicas", "1,2")
    assert run(*SMALL, *options, "--slo", "tpot:22") == 0
    shown = capsys.readouterr().out
    assert "60 requests in 59 s: 4,030 tokens in, 200 out on average" in shown
    assert "least-running: 2 replicas are enough for 90% of the requests with tpot <= 22 ms" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--routing", "best"), "routing: must be of round-robin, least-running"),
        (("--gpu", "h900"), "gpu: must be one of h100, h200"),
        (("--model", "shape:gemma-3-1b"), "model: has sliding windows or recurrent states"),
        (
            ("--model", "shape:llama-3.1-70b"),
            "gpus_per_replica: the weights take 141 GB and 1 GPU(s) offer 72",
        ),
        (("--fail", "zone3@1+1", "--zones", "2"), "fail: there is no zone 3: they are numbered 0 to 1"),
        (("--fail", "9@1+1"), "fail: there is no replica 9: they are numbered 0 to 3"),
        (("--fail", "soon"), "fail: must be written [zone]N@AT+SECONDS, such as 3@120+60"),
        (("--slo", "itl:50"), "slo: of a simulation bounds ttft, tpot, e2e"),
        (("--rate", "1", "--load", "1"), "load: and --rate say the same thing"),
        (("--requests", "nowhere.csv"), "nowhere.csv: cannot be read: No such file"),
        (("--cost", "nowhere.json"), "cost: cannot read nowhere.json: No such file"),
    ],
)
def test_mistakes_end_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    assert run("simulate", "--duration", "5", *arguments) == 2
    errors = capsys.readouterr().err
    assert complaint in errors
    assert errors.count("\n") == 1


def test_a_recorded_engine_is_calibrated_and_simulated(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    log, cost = tmp_path / "run.trace", tmp_path / "cost.json"
    header = TraceHeader(
        release="0",
        started="2024-01-01T00:00:00Z",
        model="tiny",
        device="cuda",
        dtype="bfloat16",
        block_size=4,
        num_blocks=400,
        max_num_seqs=12,
        max_num_batched_tokens=128,
        max_model_len=200,
    )
    with contextlib.closing(TraceWriter(str(log), header, trace_format())) as writer:
        writer.write(recorded(2))
    assert run("bench", "calibrate", str(log), "--out", str(cost)) == 0
    written = json.loads(cost.read_text())
    assert written["cost"]["token"] == pytest.approx(TRUE.token, rel=0.1)
    assert written["errors"]["median_error"] < 0.01
    options = ("--system-tokens", "40", "--user-tokens", "10", "--answer-tokens", "8", "--turns", "2")
    assert run("simulate", "--cost", str(cost), *BRIEF, *options, "--block-size", "8") == 0
    shown = capsys.readouterr().out
    assert "tiny, bfloat16 on cuda" in shown
    assert "error on held-out steps: median" in shown
    assert f"tiny on cuda, {cost}" in shown
    log.write_text("hello\n")
    assert run("bench", "calibrate", str(log)) == 2
    assert "is not the header of a step log" in capsys.readouterr().err


def test_a_data_sheet_gives_what_was_measured_with_this_engine() -> None:
    """Llama 3.1 8B on one H200: 3.784 ms per step of one row, 6.205 ms of 64 with some 640 tokens each (docs/performance.md)."""
    spec, gpu = find_shape("shape:llama-3.1-8b"), GPUS["h200"]
    cost = step_cost(spec, gpu, 1)
    assert cost.seconds(StepWork(1, 1, 384, 0)) == pytest.approx(3.784e-3, rel=0.05)
    assert cost.seconds(StepWork(64, 64, 64 * 640, 0)) == pytest.approx(6.205e-3, rel=0.1)
    assert 8192 / cost.seconds(StepWork(8192, 1, 0, 8192**2 // 2)) == pytest.approx(42_000, rel=0.1)
    assert kv_blocks(spec, gpu, 1, 16) * 16 == pytest.approx(845_000, rel=0.02)
