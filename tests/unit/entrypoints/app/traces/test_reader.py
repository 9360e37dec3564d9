"""Reading trace files: whole ones come back as they were written, all others end in one line that says why."""

from __future__ import annotations

import gzip
import pathlib
import tracemalloc
from collections.abc import Callable

import pytest

from nanoserve.entrypoints.app.traces.reader import TraceFile
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.trace import StatusChange
from tests.unit.entrypoints.recorded_run import FORMAT, RecordedRun, recorded_run


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


def read(path: pathlib.Path, content: bytes) -> TraceFile:
    path.write_bytes(content)
    return TraceFile(str(path), FORMAT)


def refusal(path: pathlib.Path, content: bytes) -> str:
    """Why a file with this content is refused."""
    with pytest.raises(BadValueError) as caught:
        list(read(path, content))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 500
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_trace_comes_back_as_it_was_written_whatever_its_name(
    run: RecordedRun, tmp_path: pathlib.Path, compress: object
) -> None:
    assert callable(compress)
    trace = read(tmp_path / "any.name", compress(b"".join(run.lines)))
    assert trace.header == run.header
    assert list(trace) == run.records
    assert list(trace) == run.records, "a second reading"
    assert not trace.cut_short


def test_a_compressed_trace_may_have_several_members(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    members = [gzip.compress(b"".join(run.lines[i : i + 7])) for i in range(0, len(run.lines), 7)]
    assert list(read(tmp_path / "t.gz", b"".join(members))) == run.records


def test_a_trace_cut_off_anywhere_is_read_up_to_there(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    whole = b"".join(run.lines[:6])
    first = len(run.lines[0])
    for end in range(first, len(whole)):
        trace = read(tmp_path / "t", whole[:end])
        found = list(trace)
        num_whole = whole[:end].count(b"\n") - 1
        assert found[:num_whole] == run.records[:num_whole]
        rest = whole[:end].rpartition(b"\n")[2]
        # the last line lacks nothing but its line break, or is left out
        assert len(found) == num_whole + (bool(rest) and not trace.cut_short)
        assert not trace.cut_short or rest


def test_a_compressed_trace_cut_off_anywhere_is_read_up_to_there(
    run: RecordedRun, tmp_path: pathlib.Path
) -> None:
    whole = gzip.compress(b"".join(run.lines))
    lengths = []
    for end in range(len(whole) // 2, len(whole), 97):
        found = list(read(tmp_path / "t.gz", whole[:end]))
        assert found == run.records[: len(found)]
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert lengths[0] > 0


def test_a_broken_line_is_named_by_its_number(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    for number in (2, 7, len(run.lines)):
        lines = list(run.lines)
        lines[number - 1] = lines[number - 1][:-5] + b"\n"
        assert f"line {number} is broken" in refusal(tmp_path / "t", b"".join(lines))


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b"{}\n", b'["turn"]\n', b'["later", 1]\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"]
)
def test_a_line_that_is_no_record_is_refused(run: RecordedRun, tmp_path: pathlib.Path, line: bytes) -> None:
    lines = [*run.lines[:3], line, *run.lines[3:]]
    assert "line 4 is broken" in refusal(tmp_path / "t", b"".join(lines))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_line_without_end_is_not_read_to_its_end(
    run: RecordedRun, tmp_path: pathlib.Path, compress: Callable[[bytes], bytes]
) -> None:
    content = run.lines[0] + run.lines[1] + bytes(2**25 + 2**20)
    assert "a line is longer than 33,554,432 bytes" in refusal(tmp_path / "t", compress(content))


def test_what_hardly_fills_its_compressed_data_comes_in_small_pieces(
    run: RecordedRun, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.app.traces.reader._PIECE", 2**14)
    status = FORMAT.encode(StatusChange(1.0, "ready")) + b"\n"
    times = 2**19 // len(status)
    trace = read(tmp_path / "t", gzip.compress(run.lines[0] + status * times))
    tracemalloc.start()
    assert sum(1 for _ in trace) == times
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**18


def test_an_unknown_version_is_refused_by_its_number(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    assert b'"version":1' in run.lines[0]
    later = run.lines[0].replace(b'"version":1', b'"version":99')
    assert "version 99" in refusal(tmp_path / "t", later + b'["whatever"]\n')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(300), "is not a step log"),
        (b"\x7fELF\n\x02\x01\x01", "not the header of a step log"),
        (bytes(200_000), "is not a step log"),
        (b"hello\nworld\n", "not the header of a step log"),
        (b'{"version":1}\n', "not the header of a step log"),
        (b'{"version":1', "is not a step log"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x1f\x8b\x09garbage", "compressed data is broken"),
        (b"\x1f\x8b", "is empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: pathlib.Path, content: bytes, reason: str) -> None:
    assert reason in refusal(tmp_path / "t", content)


def test_damage_inside_compressed_data_is_refused(run: RecordedRun, tmp_path: pathlib.Path) -> None:
    damaged = bytearray(gzip.compress(b"".join(run.lines)))
    damaged[len(damaged) // 2] ^= 0xFF
    assert any(word in refusal(tmp_path / "t", bytes(damaged)) for word in ("broken", "not a step log"))


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file"), ("", "Is a directory")])
def test_what_cannot_be_opened_is_refused(tmp_path: pathlib.Path, name: str, reason: str) -> None:
    with pytest.raises(BadValueError, match=reason):
        TraceFile(str(tmp_path / name), FORMAT)
