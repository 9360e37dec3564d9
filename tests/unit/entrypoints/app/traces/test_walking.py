"""Walking through a trace: the books after each record, and traces that contradict themselves."""

from __future__ import annotations

import attrs
import pytest

from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import Snapshot, StatusChange, TraceRecord, Turn
from tests.unit.entrypoints.recorded_run import RecordedRun, recorded_run, restarted


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


def test_the_books_come_to_their_end_with_the_run(run: RecordedRun) -> None:
    *_, (_, books) = walk(run)
    assert books.sequences == {}
    assert books.preemptions > 0
    assert books.finished == {"length": books.finished["length"], "abort": 1}
    assert books.prefix_hits > 0


def test_a_snapshot_in_the_middle_starts_over(run: RecordedRun) -> None:
    *_, (_, once) = walk(run)
    *_, (_, twice) = walk(restarted(run))
    assert once.snapshot() == twice.snapshot()


def test_a_change_of_status_has_no_books(run: RecordedRun) -> None:
    first, *rest = run.records
    records = [first, StatusChange(0.1, "ready"), *rest]
    assert [record for record, _ in walk(records)] == run.records


def _without_arrivals(records: list[TraceRecord]) -> list[TraceRecord]:
    return [attrs.evolve(each, arrived=()) if isinstance(each, Turn) else each for each in records]


def test_records_that_do_not_fit_are_refused(run: RecordedRun) -> None:
    with pytest.raises(TraceError, match="record 2 does not fit"):
        list(walk(_without_arrivals(run.records)))
    with pytest.raises(TraceError, match="not a snapshot"):
        list(walk(run.records[1:]))
    with pytest.raises(TraceError, match="it only has a header"):
        list(walk([]))
    with pytest.raises(TraceError, match="does not fit"):
        list(walk([Snapshot(at=0.0), *run.records[1:]]))
