"""The figures of a run: what the records say, also where another engine goes on or a part was left out."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

import pytest
from rich.console import Console

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect import command
from nanoserve.entrypoints.page.inspect.command import run_inspect
from nanoserve.entrypoints.page.inspect.summary import TraceSummary
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import PlannedStep, Preemption, Turn
from tests.unit.entrypoints.recorded_run import RecordedRun, recorded_run, restarted


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


def test_every_figure_is_what_the_records_say(run: RecordedRun) -> None:
    turns = [each for each in run if isinstance(each, Turn)]
    events = [event for turn in turns for event in turn.happened]
    steps = [event for event in events if isinstance(event, PlannedStep)]
    *_, (_, books) = walk(run)
    summary = TraceSummary(run.header, run)
    assert summary.finished == books.finished
    decoded = 0
    decoding: tuple[int, ...] = ()
    for step in steps:
        decoding = decoding if step.decoding is None else step.decoding
        decoded += len(decoding)
    expected = {
        "sequences": sum(len(turn.arrived) for turn in turns),
        "steps": len(steps),
        "generated": books.generated_tokens,
        "prefill": sum(chunk.length for step in steps for chunk in step.chunks),
        "decode": decoded,
        "preemptions": sum(isinstance(event, Preemption) for event in events),
        "queries": books.prefix_queries,
        "hits": books.prefix_hits,
    }
    assert summary.counts == expected
    assert all(expected.values())
    console = Console(record=True, width=100)
    console.print(summary.table("run\x1b[31m"))
    text = re.sub(" +", " ", console.export_text())
    assert f"sequences {expected['sequences']}; ended: abort 1, length " in text
    assert f"computed {expected['prefill']:,} tokens of prefill, {decoded:,} of decode" in text
    assert "\x1b" not in text


def test_another_engine_goes_on_behind_the_first(run: RecordedRun) -> None:
    once, twice = TraceSummary(run.header, run), TraceSummary(run.header, restarted(run))
    doubled = {name: 2 * count for name, count in once.counts.items()}
    assert twice.counts == Counter({**doubled, "interruptions": 1})


def test_a_sequence_counts_once_over_a_gap(run: RecordedRun) -> None:
    """A snapshot takes the place of the records that were left out."""
    cut = len(run.records) // 2
    states = [books.snapshot() for _, books in walk(run.records[: cut + 1])]
    gap = TraceSummary(run.header, [*run.records[: cut - 3], states[-1]])
    assert states[-1].sequences
    assert gap.counts["interruptions"] == 1
    assert gap.counts["sequences"] == TraceSummary(run.header, run.records[: cut + 1]).counts["sequences"]


def test_records_that_contradict_each_other_are_refused(run: RecordedRun) -> None:
    with pytest.raises(TraceError, match="does not fit"):
        TraceSummary(run.header, [run.records[0], *run.records[4:]])


@pytest.mark.parametrize("is_long", [True, False])
def test_a_long_trace_is_announced(
    run: RecordedRun,
    is_long: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run.trace"
    path.write_bytes(b"".join(run.lines))
    monkeypatch.setattr(command, "LONG_FILE", path.stat().st_size + (0 if is_long else 1))
    run_inspect(str(path), summary=True)
    assert (f"{path}: 0 MB, which takes" in capsys.readouterr().err) == is_long
