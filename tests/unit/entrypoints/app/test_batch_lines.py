"""Lines of batches and their answers: what is refused, what is written together, and what a disk that refuses leaves behind."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import pathlib
from typing import Any

import pytest

from nanoserve.entrypoints.app.batch_lines import (
    LONGEST_LINE,
    BatchLine,
    LineError,
    LineReply,
    answer_lines,
    answers_in,
    read_lines,
)

URL = "/v1/completions"


def line(name: str, **more: Any) -> bytes:
    return json.dumps({"custom_id": name, "url": URL, "body": {}, **more}).encode() + b"\n"


def entry(name: str) -> dict[str, Any]:
    return LineReply(200, {"of": name}, "r").entry(BatchLine(name, URL, b"{}"))


def written(path: pathlib.Path) -> list[str]:
    return [json.loads(each)["custom_id"] for each in path.read_text().splitlines()]


def test_wrong_lines_stand_among_the_others_with_their_numbers() -> None:
    raw = line("a") + b"\n[1]\n" + line("a") + line("b", url="/v1/embeddings") + line("c")
    found = list(read_lines(io.BytesIO(raw), URL))
    assert [each.custom_id for each in found if isinstance(each, BatchLine)] == ["a", "c"]
    errors = [each for each in found if isinstance(each, LineError)]
    assert [each.number for each in errors] == [3, 4, 5]
    assert "asks for '/v1/embeddings' in a batch for /v1/completions" in str(errors[2])


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_a_line() -> None:
    (found,) = read_lines(io.BytesIO(b"\xef\xbb\xbf" + line("a")))
    assert found == BatchLine("a", URL, b"{}")
    last = [*read_lines(io.BytesIO(line("a") + b"\xef\xbb\xbf" + line("b")))][1]
    assert "is not JSON" in str(last)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(encoding: str) -> None:
    found = [*read_lines(io.BytesIO((line("a") + line("b")).decode().encode(encoding)))]
    assert "line 1 is not UTF-8: it looks like UTF-16; write the file as UTF-8" in str(found[0])


def test_a_field_that_is_added_counts() -> None:
    for body, expected in ((b"{}", {"a": 1}), (b' { "b" : 2 } ', {"b": 2, "a": 1}), (b'{"a":0}', {"a": 1})):
        assert json.loads(BatchLine("", URL, body).with_field("a", 1).body) == expected


def test_a_line_of_any_length_is_read_no_further_than_the_bound() -> None:
    raw = b"x" * (2 * LONGEST_LINE + 5) + b"\n" + line("a") + b"y" * (LONGEST_LINE + 1)
    found = list(read_lines(io.BytesIO(raw)))
    assert [getattr(each, "number", None) for each in found] == [1, None, 3]
    assert str(found[0]) == f"file: line 1 is longer than {LONGEST_LINE} bytes"


async def test_answers_of_several_callers_are_synced_together(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with answers_in(tmp_path / "out") as answers:
        await asyncio.gather(*(answers.write(entry(str(number))) for number in range(50)))
        assert answers.done == {str(number) for number in range(50)}
    assert written(tmp_path / "out") == [str(number) for number in range(50)]
    assert len(synced) == 2  # the first alone, and those that came meanwhile


async def test_what_the_disk_has_refused_can_be_written_again_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = [True], os.write

    def write(descriptor: int, data: bytes) -> int:
        if not full[0] or descriptor <= 2:
            return real(descriptor, data)
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:40])

    with answers_in(tmp_path / "out") as answers:
        monkeypatch.setattr(os, "write", write)
        for _ in range(2):
            refused = await asyncio.gather(
                *(answers.write(entry(name)) for name in "ab"), return_exceptions=True
            )
            assert [type(each) for each in refused] == [OSError, OSError]
            assert not answers.done
            assert (tmp_path / "out").read_bytes() == b""
        full[0] = False
        await asyncio.gather(*(answers.write(entry(name)) for name in "ba"))
    assert sorted(written(tmp_path / "out")) == ["a", "b"]


async def test_a_caller_that_is_cancelled_leaves_a_whole_answer_or_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, began, real = asyncio.get_running_loop(), asyncio.Event(), os.fsync

    def fsync(descriptor: int) -> None:
        loop.call_soon_threadsafe(began.set)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with answers_in(tmp_path / "out") as answers:
        writing = asyncio.ensure_future(answers.write(entry("a")))
        await began.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert answers.done == {"a"}
        await answers.write(entry("b"))
    assert written(tmp_path / "out") == ["a", "b"]


async def test_no_more_lines_are_in_flight_than_there_are_slots() -> None:
    now, most, said, full = 0, 0, [], asyncio.Event()

    async def ask(each: BatchLine) -> LineReply:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 3:
            full.set()
        await full.wait()
        now -= 1
        return LineReply(200, each.custom_id)

    async def write(_: BatchLine, reply: LineReply) -> None:
        said.append(reply.body)

    lines = [BatchLine(str(number), URL, b"{}") for number in range(20)]
    await answer_lines(iter(lines), ask, write, asyncio.Semaphore(3))
    assert (sorted(said, key=int), most) == ([each.custom_id for each in lines], 3)
