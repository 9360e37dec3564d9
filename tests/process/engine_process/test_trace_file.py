"""The step log of a server on disk: whatever happens to the process or the disk, what is there can be read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import pathlib
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.app.live_feed import LiveFeed
from nanoserve.entrypoints.app.traces import reader as traces
from nanoserve.entrypoints.app.traces.writer import TraceWriter
from nanoserve.entrypoints.server.trace_file import LiveTraceWriter, check_trace_file
from nanoserve.ports.errors import BadValueError
from tests.patience import PATIENCE
from tests.unit.adapters.engine_process.client.engines import (
    RemoteEngine,
    read,
    request,
    scripted_engine,
    started,
    until,
)
from tests.unit.adapters.engine_process.client.log_reader import FORMAT, log_of


@contextlib.asynccontextmanager
async def traced(path: pathlib.Path, limit: int = 2**30) -> AsyncIterator[RemoteEngine]:
    engine = scripted_engine()
    feed = LiveFeed(engine, SystemClock(), FORMAT, model="a name")
    writing = LiveTraceWriter(feed, str(path), limit, FORMAT)
    writing.start()
    await asyncio.sleep(0)
    try:
        async with started(engine):
            yield engine
    finally:
        feed.close()
        await writing.wait()


async def answer(engine: RemoteEngine, *names: str, max_tokens: int = 100) -> None:
    await asyncio.gather(*(read(engine.submit(request(each, max_tokens=max_tokens))) for each in names))


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
async def test_everything_from_the_first_request_to_the_stop_is_there(
    tmp_path: pathlib.Path, name: str
) -> None:
    async with traced(tmp_path / name) as engine:
        await answer(engine, "a", "b", "c")
    reader = log_of(tmp_path / name)
    assert reader.state.finished == {"length": 3}
    assert (len(reader.snapshots), reader.snapshots[0].sequences) == (1, ())
    assert reader.statuses == ["stopped"]
    assert traces.TraceFile(str(tmp_path / name), FORMAT).header.model == "a name"
    assert [each.name for each in tmp_path.iterdir()] == [name]


async def test_a_compressed_file_can_be_read_at_any_moment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.app.traces.writer.FLUSH_SECONDS", 1e9)
    path = tmp_path / "log.gz"
    async with traced(path) as engine:
        await answer(engine, "a")

        def has_all() -> bool:
            with contextlib.suppress(BadValueError, AssertionError):
                return log_of(path).state.finished == {"length": 1}
            return False

        await until(has_all)
        with pytest.raises(EOFError), gzip.open(path) as file:
            file.read()


async def test_a_new_engine_goes_on_in_the_same_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    async with traced(path) as engine:
        await answer(engine, "a")
        assert engine.facts is not None
        os.kill(engine.facts.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 1)
        await answer(engine, "b")
    reader = log_of(path)
    assert reader.statuses == ["restarting", "ready", "stopped"]
    assert len(reader.snapshots) == 2
    assert reader.state.finished == {"length": 1}
    assert not (tmp_path / "log.1").exists()


async def test_a_full_file_is_put_aside_and_each_is_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    async with traced(path, limit=4000) as engine:
        for name in "abcdefgh":
            await answer(engine, name, max_tokens=200)
        await until((tmp_path / "log.1").exists)
        await answer(engine, "i", max_tokens=300)
    for each in (path, tmp_path / "log.1"):
        reader = log_of(each)
        assert reader.turns
        assert [type(record).__name__ for record in reader.records].count("Snapshot") == 1
        assert traces.TraceFile(str(each), FORMAT).header.model == "a name"
    assert (tmp_path / "log.1").stat().st_size >= 4000
    assert len(list(tmp_path.iterdir())) == 2


async def test_a_slow_disk_loses_parts_and_delays_no_request(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.app.live_feed.MOST_UNREAD", 3000)
    may_write = threading.Event()
    write = TraceWriter.write_lines

    def slow(self: Any, lines: Any) -> None:
        write(self, lines)
        assert may_write.wait(PATIENCE)

    monkeypatch.setattr(TraceWriter, "write_lines", slow)
    path = tmp_path / "log"
    async with traced(path) as engine:
        for name in "abcd":
            await answer(engine, name, max_tokens=300)
        may_write.set()
        await until(lambda: path.read_bytes().count(b'["snapshot"') == 2)
        await answer(engine, "e")
    assert log_of(path).state.finished == {"length": 5}


async def test_a_write_that_blocks_for_ever_is_left_behind_and_what_is_lost_is_counted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.server.trace_file._FAREWELL", 0.1)
    monkeypatch.setattr("nanoserve.entrypoints.app.live_feed.MOST_UNREAD", 3000)
    path, may_end = tmp_path / "log", threading.Event()

    def stuck(writer: TraceWriter, _: Any) -> None:
        may_end.wait(PATIENCE)
        writer.close()

    engine = scripted_engine()
    feed = LiveFeed(engine, SystemClock(), FORMAT, model="a name")
    writing = LiveTraceWriter(feed, str(path), 2**30, FORMAT)
    writing.start()
    await asyncio.sleep(0)
    with structlog.testing.capture_logs() as logs, feed.steps() as other:
        async with started(engine):
            await answer(engine, "a")
            await until(lambda: path.exists() and log_of(path).state.finished == {"length": 1})
            monkeypatch.setattr(TraceWriter, "write_lines", stuck)
            for name in "bcde":
                await answer(engine, name, max_tokens=300)
        feed.close()
        await writing.wait()
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == "trace":
            thread.join()
    said = [each["lost_events"] for each in logs if "step log" in each["event"]]
    reader = log_of(path)
    num_written = len(reader.turns) + len(reader.statuses)
    assert said == [other.num_offered - num_written]
    assert 0 < num_written < 300 < other.num_offered


async def test_a_full_disk_ends_the_log_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with structlog.testing.capture_logs() as logs:
        async with traced(tmp_path / "log") as engine:
            await answer(engine, "a")
            monkeypatch.setattr(TraceWriter, "write_lines", full)
            await answer(engine, "b", max_tokens=300)
            assert engine.restarts == 0
    said = [each for each in logs if "step log" in each["event"]]
    assert [each["reason"] for each in said] == ["No space left on device"]


def test_the_last_log_is_kept(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log").write_text("of an incident")
    check_trace_file(str(tmp_path / "log"))
    assert [each.name for each in tmp_path.iterdir()] == ["log.1"]
    check_trace_file(str(tmp_path / "log"))
    assert (tmp_path / "log.1").read_text() == "of an incident"


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadValueError, match="name a file in a folder that exists"):
        check_trace_file(str(tmp_path / "no" / "log"))
    (tmp_path / "log").write_text("")
    (tmp_path / "log.1").mkdir()
    with pytest.raises(BadValueError, match="name another file"):
        check_trace_file(str(tmp_path / "log"))
