"""The Gantt rows of a run: what each sequence does in each step, checked against the records one step at a time."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect.chart import Chart, gather
from nanoserve.entrypoints.page.inspect.rows import Doing, Rows
from nanoserve.ports.trace import Admission, Arrival, PlannedStep, Preemption, Snapshot, TracedChunk, Turn
from tests.unit.entrypoints.recorded_run import RecordedRun, recorded_run, restarted


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


@pytest.fixture(scope="module")
def chart(run: RecordedRun) -> Chart:
    return gather(run)


def doing_at(chart: Chart, row: int, step: int) -> Doing | None:
    """What a row does in a step, counted from 0; two bars that overlap are a failure."""
    found = [each.doing for each in chart.rows[row].bars if each.start <= step < each.stop]
    assert len(found) <= 1
    return found[0] if found else None


def test_every_bar_is_what_the_records_say(run: RecordedRun, chart: Chart) -> None:
    """Here the keys of sequences are the numbers of the rows, because nothing ran before."""
    decoding: tuple[int, ...] = ()
    step = 0
    seen: set[Doing | None] = set()
    for record, _ in walk(run):
        if isinstance(record, Snapshot):
            continue
        for event in record.happened:
            if not isinstance(event, PlannedStep):
                continue
            decoding = decoding if event.decoding is None else event.decoding
            chunks = {each.key: each.length for each in event.chunks}
            for row in range(len(chart.rows)):
                doing = doing_at(chart, row, step)
                seen.add(doing)
                assert (doing is Doing.DECODE) == (row in decoding)
                assert (doing is Doing.PREFILL) == (row in chunks)
            for key, length in chunks.items():
                (bar,) = [each for each in chart.rows[key].bars if each.start == step]
                assert (bar.num_tokens, bar.stop) == (length, step + 1)
            assert (chart.prefill[step], chart.decode[step]) == (sum(chunks.values()), len(decoding))
            step += 1
    assert chart.num_steps == step
    assert {Doing.QUEUED, Doing.PREEMPTED, Doing.DECODE, Doing.PREFILL, None} <= seen


def test_rows_wait_from_their_arrival_and_end_with_a_mark(chart: Chart) -> None:
    for row in chart.rows:
        assert row.bars[0].start == 0
        ends = [each for each in row.marks if each.what in {"length", "abort"}]
        assert len(ends) == 1
        assert ends[0].at == row.bars[-1].stop
    aborted = [row.label for row in chart.rows if any(each.what == "abort" for each in row.marks)]
    assert aborted == ["request-1"]


def test_preemptions_are_counted_and_marked(run: RecordedRun, chart: Chart) -> None:
    turns = [each for each in run if isinstance(each, Turn)]
    expected = sum(isinstance(event, Preemption) for turn in turns for event in turn.happened)
    marks = [each for row in chart.rows for each in row.marks if each.what == "preempted"]
    assert chart.preemptions == len(marks) == expected > 0


def test_answers_of_one_request_have_names_of_their_own(chart: Chart) -> None:
    labels = [row.label for row in chart.rows]
    assert len(set(labels)) == len(labels)
    assert {"request-3", "request-3 #1", "request-3 #2", "request-3 #3"} <= set(labels)


def test_another_engine_goes_on_behind_the_first(run: RecordedRun, chart: Chart) -> None:
    twice = gather(restarted(run))
    assert twice.breaks == [chart.num_steps]
    assert twice.num_steps == 2 * chart.num_steps
    assert len(twice.rows) == 2 * len(chart.rows)
    assert twice.generated_tokens == 2 * chart.generated_tokens
    assert twice.prefix_hits == 2 * chart.prefix_hits > 0


def test_an_answer_keeps_its_row_over_a_gap(run: RecordedRun) -> None:
    """A snapshot takes the place of the records that were left out."""
    cut = len(run.records) // 2
    states = [books.snapshot() for _, books in walk(run.records[: cut + 1])]
    gap = RecordedRun(run.header, [*run.records[: cut - 3], states[-1]])
    chart = gather(gap)
    alive = {(each.request_id, each.index) for each in states[-1].sequences}
    assert chart.breaks == [chart.num_steps]
    assert len({row.label for row in chart.rows}) == len(chart.rows)
    assert alive
    assert alive <= {(row.request_id, row.index) for row in chart.rows}


def test_a_sequence_that_a_step_has_no_room_for_is_idle() -> None:
    rows = Rows()
    rows.start(Snapshot(at=0.0))
    arrived = (Arrival(0, "a", 0, 30, 40), Arrival(1, "b", 0, 30, 40))
    admitted = (Admission(0, 0, 0, False), Admission(1, 1, 8, False))
    steps = (
        PlannedStep(1, (TracedChunk(0, 0, 8, False), TracedChunk(1, 8, 8, False)), ()),
        PlannedStep(2, (TracedChunk(0, 8, 16, False),), None),
        PlannedStep(3, (TracedChunk(0, 24, 6, True),), None),
        PlannedStep(4, (TracedChunk(1, 16, 14, True),), (0,)),
    )
    rows.take(Turn(at=0.1, arrived=arrived, happened=(*admitted, *steps)))
    rows.finish()
    first, second = rows.all
    assert [(bar.doing, bar.start, bar.stop, bar.num_tokens) for bar in second.bars] == [
        (Doing.PREFILL, 0, 1, 8),
        (Doing.IDLE, 1, 3, 0),
        (Doing.PREFILL, 3, 4, 14),
    ]
    assert [(bar.doing, bar.num_tokens) for bar in first.bars] == [
        (Doing.PREFILL, 8),
        (Doing.PREFILL, 16),
        (Doing.PREFILL, 6),
        (Doing.DECODE, 0),
    ]
    assert [(mark.what, mark.at) for mark in second.marks] == [("prefix hit", 0)]
