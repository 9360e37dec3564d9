"""Writing trace files: what was written is on disk at once, and can be read by whoever comes at any moment."""

from __future__ import annotations

import contextlib
import os
import pathlib

import attrs
import pytest

from nanoserve.entrypoints.app.traces import writer as writing
from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.entrypoints.app.traces.writer import TraceWriter, check_trace_path
from nanoserve.ports.errors import BadValueError
from tests.unit.entrypoints.recorded_run import FORMAT, RecordedRun, recorded_run


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


def test_every_record_can_be_read_as_soon_as_it_is_written(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "run.trace")
    with contextlib.closing(TraceWriter(path, run.header, FORMAT)) as writer:
        for number, record in enumerate(run.records, start=1):
            writer.write([record])
            trace = TraceFile(path, FORMAT)
            assert list(trace) == run.records[:number]
            assert not trace.cut_short


def test_compressed_records_can_be_read_before_the_file_is_closed(
    run: RecordedRun, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.trace.gz"
    monkeypatch.setattr(writing, "FLUSH_SECONDS", 0.0)
    with contextlib.closing(TraceWriter(str(path), run.header, FORMAT)) as writer:
        for number, record in enumerate(run.records, start=1):
            writer.write([record])
            assert list(TraceFile(str(path), FORMAT)) == run.records[:number]
    assert path.read_bytes().startswith(b"\x1f\x8b")


def test_a_compressed_trace_is_smaller_than_a_plain_one(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    sizes = []
    for name in ("a.trace", "a.trace.gz"):
        with contextlib.closing(TraceWriter(str(tmp_path / name), run.header, FORMAT)) as writer:
            for record in run.records:
                writer.write([record])
        assert list(TraceFile(str(tmp_path / name), FORMAT)) == run.records
        sizes.append((tmp_path / name).stat().st_size)
    assert sizes[1] * 3 < sizes[0]


def test_a_file_that_was_there_is_replaced_when_the_trace_begins(
    run: RecordedRun, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "run.trace"
    path.write_text("something else, and longer than a header " * 100)
    check_trace_path(str(path))
    assert path.read_text().startswith("something else")
    TraceWriter(str(path), run.header, FORMAT).close()
    assert path.read_bytes() == run.lines[0]


def test_a_file_has_one_writer_at_a_time(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "run.trace")
    writer = TraceWriter(path, run.header, FORMAT)
    with pytest.raises(BadValueError, match="another process writes"):
        check_trace_path(path)
    with pytest.raises(BlockingIOError):
        TraceWriter(path, run.header, FORMAT)
    writer.close()
    assert pathlib.Path(path).read_bytes() == run.lines[0]
    check_trace_path(path)


def test_a_path_that_was_only_checked_leaves_no_file(tmp_path: pathlib.Path) -> None:
    check_trace_path(str(tmp_path / "run.trace"))
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadValueError, match="pipe is a pipe or a socket; name a file"):
        check_trace_path(str(tmp_path / "pipe"))


@pytest.mark.parametrize("name", ["run.trace", "run.trace.gz"])
def test_words_are_written_for_the_owner_only(run: RecordedRun, tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / name
    TraceWriter(str(path), attrs.evolve(run.header, has_words=True), FORMAT).close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", "nowhere/run.trace", "n" * 300])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(BadValueError, match="trace: cannot write"):
        check_trace_path(str(tmp_path / name))
