"""Trace files of the real engine: a stress run replays to exactly its states, and no trace tells what was said."""

from __future__ import annotations

import contextlib
import pathlib
import random
import signal
import urllib.request
from typing import Any

import pytest

from nanoserve.adapters.trace.codec import JsonTraceFormat
from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.entrypoints.app.traces.reader import TraceFile, walk
from nanoserve.entrypoints.app.traces.writer import TraceWriter
from nanoserve.entrypoints.cli.main import run_command
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.trace import Snapshot, Turn
from tests.inside import inside
from tests.process.command import run, started

FORMAT = JsonTraceFormat()
STORY = "Once upon a time there was a fox who lived in a house by the sea with a lamp. "
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "block_size": 8,
    "num_kv_blocks": 48,
    "max_model_len": 160,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 48,
    "paranoid": True,
}


def read(path: pathlib.Path) -> TraceFile:
    return TraceFile(str(path), FORMAT)


def requests(encode: Any, dice: random.Random, count: int) -> list[Request]:
    """Prompts that share beginnings, long ones that are computed in chunks, and some with four answers."""
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=tuple(
                encode(STORY * dice.choice([0, 1, 1, 2, 4]) + f"Chapter {number % 9}")[:120]
            ),
            sampling=SamplingParams(
                max_tokens=dice.randrange(1, 39), n=dice.choice([1, 1, 1, 4]), ignore_eos=True
            ),
            seed=number,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("depth", "name"), [(1, "run.trace"), (2, "run.trace.gz")])
def test_a_stress_run_replays_from_its_file_to_exactly_the_same_states(
    tmp_path: pathlib.Path, depth: int, name: str
) -> None:
    settings = EngineSettings(**SETTINGS, depth=depth)
    assembly = assemble(settings)
    engine, dice = assembly.engine, random.Random(depth)
    waiting = requests(assembly.tokenizer.encode, dice, 40)
    expected: list[Snapshot] = []
    path = tmp_path / name
    recorder = engine.record()
    with contextlib.closing(
        TraceWriter(str(path), trace_header(settings, assembly, has_words=False), FORMAT)
    ) as writer:
        writer.write([recorder.snapshot()])
        while waiting or engine.has_work:
            for _ in range(min(dice.randrange(3), len(waiting))):
                engine.add(waiting.pop())
            if dice.random() < 0.05 and inside(engine).scheduler.table.requests:
                engine.abort(dice.choice(list(inside(engine).scheduler.table.requests)))
            engine.turn()
            turns = recorder.take()
            writer.write(turns)
            expected.extend(read_snapshot(inside(engine).scheduler, at=turn.at) for turn in turns)
    replayed = [books.snapshot() for record, books in walk(read(path)) if isinstance(record, Turn)]
    assert replayed == expected
    last = replayed[-1]
    assert last.preemptions > 5
    assert last.prefix_hits > 100
    assert {"length", "abort"} <= set(last.finished)
    assert not last.sequences
    assert any(len(each.sequences) > 10 for each in replayed)


@pytest.mark.parametrize("name", ["run.trace", "run.trace.gz"])
def test_a_killed_run_leaves_what_it_had_written(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / name
    with started("generate", STORY, "--max-tokens", "900", "--ignore-eos", "--trace", str(path)) as process:
        assert process.stdout is not None
        seen = process.stdout.read(400)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        trace = read(path)
        records = list(trace)
        if not name.endswith(".gz"):  # a compressed one may lack the last quarter of a second
            *_, (_, books) = walk(records)
            assert books.generated_tokens >= len(seen.decode(errors="ignore").split())
            assert [each.phase for each in books.sequences.values()] == ["running"]
        assert all(isinstance(each, Snapshot) == (number == 0) for number, each in enumerate(records))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("traces") / "run.trace"
    done = run("generate", STORY, "--max-tokens", "12", "--n", "3", "--ignore-eos", "--trace", str(path))
    assert done.returncode == 0, done.stderr
    return path


def test_inspect_shows_a_page_until_it_is_interrupted(trace: pathlib.Path) -> None:
    with started("inspect", str(trace), "--no-browser") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("http://127.0.0.1:")):
            line = process.stdout.readline().decode()
            assert line, lines
            lines.append(line)
        with urllib.request.urlopen(lines[-1].split()[0]) as answer:
            page = answer.read().decode()
        assert trace.read_text().splitlines()[-1] in page
        assert any("36 generated" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, b"")


def test_inspect_writes_a_report(trace: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = tmp_path / "out.html"
    done = run("inspect", str(trace), "--report", str(report))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"wrote {report} (")
    assert report.read_text().startswith("<!doctype html>")


def test_inspect_sums_up_and_says_that_the_end_is_missing(
    trace: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(trace.read_bytes()[:-9])
    done = run("inspect", str(cut), "--summary")
    assert done.returncode == 0
    assert "sequences" in done.stdout.decode()
    assert done.stderr.decode().splitlines() == [
        f"nanoserve: {cut}: the end is cut off; what is left of the last line is left out"
    ]


def test_inspect_refuses_bad_usage_in_one_line(
    trace: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, reason in (
        ((str(tmp_path),), "Is a directory"),
        (("/dev/null",), "is empty"),
        ((str(trace), "--report", str(trace)), "is the trace itself"),
        ((str(trace), "--report", "/nowhere/x.html"), "report: cannot write /nowhere/x.html"),
        ((str(trace), "--report", "/dev/full"), "report: cannot write /dev/full: No space left"),
        ((str(trace), "--port", "99999"), "--port"),
        ((), "STEP_LOG"),
    ):
        assert run_command(["inspect", *arguments]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert reason in shown.err
    assert read(trace).header.version == 1
