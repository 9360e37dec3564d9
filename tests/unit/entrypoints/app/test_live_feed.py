"""The live feed: what it asks of the engine, what each viewer gets, and what a viewer without rights is shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from nanoserve.entrypoints.app import live_feed
from nanoserve.entrypoints.app.live_feed import LiveFeed, LogPart, Redaction, StepViewer
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Logged, Watch
from tests.unit.adapters.engine_process.client.log_reader import FORMAT
from tests.unit.entrypoints.recorded_run import SECRET, recorded_run


class Spy:
    """An engine client that is asked to watch."""

    def __init__(self) -> None:
        self.status = EngineStatus.READY
        self.wishes: list[Watch | None] = []
        self.tell: Callable[[Logged | EngineStatus], None] = lambda _: None

    def watch(self, asked: Watch, listener: Callable[[Logged | EngineStatus], None]) -> None:
        self.wishes.append(asked)
        self.tell = listener

    def unwatch(self) -> None:
        self.wishes.append(None)


SNAPSHOT = Logged(b'["snapshot"]', header=b"{}")
FIRST = attrs.evolve(SNAPSHOT, follows=False)


class StoppedClock:
    time = 100.0

    def now(self) -> float:
        return self.time


@contextlib.contextmanager
def spied() -> Any:
    spy: Any = Spy()
    clock = StoppedClock()
    yield spy, LiveFeed(spy, clock, FORMAT, model="m"), clock


async def drained(viewer: StepViewer) -> list[bytes]:
    parts = []
    while (part := await viewer.next(0.0)) is not None:
        parts.append(part.lines)
    return parts


async def test_the_engine_records_only_while_somebody_watches() -> None:
    with spied() as (spy, feed, _clock):
        assert spy.wishes == []
        with feed.steps() as one:
            await one.next(0.0)
            with feed.steps():
                pass
            assert spy.wishes == [Watch(model="m", began=100.0)]
        assert spy.wishes[1:] == [None]
        with feed.steps() as again:
            await again.next(0.0)
        assert len(spy.wishes) == 4


async def test_requests_for_snapshots_are_bounded_over_all_viewers() -> None:
    with spied() as (spy, feed, clock), contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(feed.steps()) for _ in range(5)]
        for _ in range(100):
            for viewer in viewers:
                await viewer.next(0.0)
        assert len(spy.wishes) == 1
        clock.time += live_feed.SNAPSHOT_PERIOD
        for viewer in viewers:
            await viewer.next(0.0)
        assert len(spy.wishes) == 2


async def test_a_viewer_gets_no_snapshot_without_need_and_no_turn_before_one() -> None:
    with spied() as (spy, feed, _clock), feed.steps() as old:
        await old.next(0.0)
        spy.tell(Logged(b"useless"))
        spy.tell(FIRST)
        spy.tell(Logged(b"1"))
        with feed.steps() as new:
            spy.tell(EngineStatus.STALLED)
            spy.tell(EngineStatus.STALLED)
            spy.tell(Logged(b"2"))
            spy.tell(SNAPSHOT)
            spy.tell(Logged(b"3"))
            stalled = b'["status",0.0,"stalled"]'
            assert await drained(old) == [SNAPSHOT.lines, b"1", stalled, b"2", b"3"]
            assert await drained(new) == [SNAPSHOT.lines, b"3"]
            spy.tell(FIRST)
            assert await drained(old) == await drained(new) == [SNAPSHOT.lines]


async def test_a_reader_gets_all_there_is_beside_one_that_never_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_feed, "MOST_UNREAD", 100)
    with spied() as (spy, feed, clock), feed.steps() as reader, feed.steps() as stuck:
        await reader.next(0.0)
        spy.tell(FIRST)
        await drained(reader)
        for number in range(200):
            clock.time += live_feed.SNAPSHOT_PERIOD
            spy.tell(Logged(b"%03d" % number))
            assert await drained(reader) == [b"%03d" % number]
            assert sum(len(part.lines) for part in stuck._parts) <= 100
        assert len(spy.wishes) == 1, "nobody has wished for another snapshot"
        while await stuck.next(0.0):
            pass
        await stuck.next(0.0)
        spy.tell(SNAPSHOT)
        spy.tell(Logged(b"after"))
        assert await drained(stuck) == [SNAPSHOT.lines, b"after"]
        assert await drained(reader) == [b"after"]


async def test_the_closed_feed_hands_out_what_is_left() -> None:
    with spied() as (spy, feed, _clock), feed.steps() as viewer:
        await viewer.next(0.0)
        spy.tell(FIRST)
        waiting = asyncio.create_task(feed.wait_for_end(60))
        feed.close()
        await asyncio.wait_for(waiting, 600)
        assert await drained(viewer) == [FIRST.lines]
        assert await viewer.next(60) is None


def test_the_same_log_is_left_without_its_words() -> None:
    run = recorded_run(words=True)
    plain = recorded_run()
    header, *lines = (line.removesuffix(b"\n") for line in run.lines)
    part = LogPart(b"\n".join(lines), header)
    shown = Redaction(FORMAT).redacted(part)
    assert any(getattr(record, "words", ()) for record in run.records)
    assert shown.header is not None
    assert FORMAT.decode_header(shown.header) == attrs.evolve(run.header, has_words=False)
    found = [FORMAT.decode(line) for line in shown.lines.split(b"\n")]
    assert [attrs.evolve(each, at=0.0) for each in found] == [
        attrs.evolve(each, at=0.0) for each in plain.records
    ]
    assert not any(token in shown.lines for token in (SECRET.encode(), b'{"'))


def test_a_part_that_was_made_is_made_once() -> None:
    run = recorded_run("a", words=True)
    part = LogPart(FORMAT.encode(run.records[1]))
    redaction = Redaction(FORMAT)
    shown = redaction.redacted(part)
    assert shown.header is None
    assert redaction.redacted(part) is shown
