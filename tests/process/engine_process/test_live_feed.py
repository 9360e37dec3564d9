"""The live feed over a real engine in a process of its own: every viewer sees all of it, whenever it joins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.app.live_feed import LiveFeed, LogPart
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.engine_client import local_engine
from nanoserve.ports.driving import EngineClient, Reply
from tests.process.engine_process.hand_watch import HandWatch, replace_stuck
from tests.unit.adapters.engine_process.client.engines import (
    Answer,
    expected,
    pid_of,
    request,
    scripted_engine,
    started,
    until,
)
from tests.unit.adapters.engine_process.client.engines import read as read_pending
from tests.unit.adapters.engine_process.client.log_reader import FORMAT, LogReader
from tests.unit.adapters.engine_process.host.scripted_host import SLOW, build


async def read(reply: Reply) -> Answer:
    """An answer that came through the books."""
    pending: Any = reply
    return await read_pending(pending)


class Reading:
    """A viewer with a task that reads it."""

    def __init__(self, feed: LiveFeed) -> None:
        self.reader = LogReader()
        self.parts: list[LogPart] = []
        self.is_watching = asyncio.Event()
        self._feed = feed
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with self._feed.steps() as viewer:
            while True:
                part = await viewer.next(0.05)
                if part is not None:
                    self.parts.append(part)
                    self.reader.read(part.lines)
                    self.is_watching.set()
                elif self._feed.closed.is_set():
                    return

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@attrs.define(eq=False)
class World:
    engine: EngineClient
    feed: LiveFeed
    readings: list[Reading] = attrs.field(factory=list)

    def view(self) -> Reading:
        self.readings.append(Reading(self.feed))
        return self.readings[-1]

    async def all_told(self, answers: int) -> None:
        """Every viewer knows that so many sequences have ended."""
        await until(lambda: all(each.reader.state.finished == {"length": answers} for each in self.readings))

    async def answer(self, *names: str, max_tokens: int = 60) -> None:
        replies = [self.engine.submit(request(name, (7, len(name)), max_tokens=max_tokens)) for name in names]
        for answer in await asyncio.gather(*(read(reply) for reply in replies)):
            assert len(answer.ids) == max_tokens, answer


@contextlib.asynccontextmanager
async def opened(engine: EngineClient | None = None, *, with_words: bool = False) -> AsyncIterator[World]:
    clock = SystemClock()
    watched = engine or scripted_engine(max_num_seqs=8)
    feed = LiveFeed(watched, clock, FORMAT, model="a name", with_words=with_words)
    world = World(watched, feed)
    try:
        async with started(watched):
            yield world
    finally:
        feed.close()
        await asyncio.gather(*(each.task for each in world.readings), return_exceptions=True)


@pytest.mark.parametrize("kind", ["remote", "local"])
async def test_a_late_viewer_sees_what_the_first_one_sees(kind: str) -> None:
    local = local_engine(EngineSettings(paranoid=True), build=build) if kind == "local" else None
    async with opened(local) as world:
        first = world.view()
        await first.is_watching.wait()
        await world.answer("early")
        replies = [
            world.engine.submit(request(f"r{number}", (number, 5), max_tokens=300)) for number in range(12)
        ]
        await until(lambda: sum(len(turn.arrived) for turn in first.reader.turns) == 13)
        late = world.view()
        await late.is_watching.wait()
        start = late.reader.snapshots[0]
        assert len(start.sequences) + sum(start.finished.values()) == 13
        await asyncio.gather(*(read(reply) for reply in replies))
        await world.all_told(13)
        assert first.reader.state == late.reader.state
        assert first.reader.state.finished == {"length": 13}
        assert len(first.reader.snapshots) == len(late.reader.snapshots) == 1
        fresh = world.view()
        await fresh.is_watching.wait()
        assert fresh.reader.state == first.reader.state


async def test_all_viewers_share_the_same_bytes() -> None:
    async with opened() as world:
        viewers = [world.view() for _ in range(9)]
        for each in viewers:
            await each.is_watching.wait()
        await world.answer("r", "s", max_tokens=200)
        await world.all_told(2)
        shared = {id(part) for part in viewers[0].parts if part.header is None}
        assert len(shared) >= 2
        for each in viewers:
            assert {id(part) for part in each.parts if part.header is None} == shared


async def test_a_killed_engine_is_announced_and_the_log_replays() -> None:
    async with opened() as world:
        viewer = world.view()
        await viewer.is_watching.wait()
        reply: Any = world.engine.submit(request("interrupted", (SLOW,), max_tokens=450))
        reading = asyncio.create_task(read(reply))
        await until(lambda: reply.begun and viewer.reader.state.sequences)
        os.kill(pid_of(world.engine), signal.SIGKILL)
        await reading
        await until(lambda: len(viewer.reader.snapshots) == 2, "a second snapshot")
        await world.answer("after")
        await world.all_told(2)
        kinds = [type(each).__name__ for each in viewer.reader.records]
        again = len(kinds) - 1 - kinds[::-1].index("Snapshot")
        assert viewer.reader.statuses == ["restarting", "ready"]
        assert kinds.index("StatusChange") < again
        times = [each.at for each in viewer.reader.records]
        assert times == sorted(times), "the clock goes on"
        headers = [FORMAT.decode_header(part.header) for part in viewer.parts if part.header]
        assert [each.model for each in headers] == ["a name", "a name"]


async def test_an_engine_that_stops_on_a_bug_sends_the_end_of_its_log() -> None:
    async with opened() as world:
        viewer = world.view()
        await viewer.is_watching.wait()
        await read(world.engine.submit(request("bug")))
        await until(lambda: viewer.reader.statuses.count("ready") == 2)
        arrived = [each.request_id for turn in viewer.reader.turns for each in turn.arrived]
        assert arrived == ["bug", "bug"]
        assert viewer.reader.statuses == ["restarting", "ready"] * 2


async def test_a_stuck_engine_is_seen_stalling(hand_watch: type[HandWatch]) -> None:
    engine = scripted_engine(max_num_seqs=8)
    async with opened(engine) as world:
        viewer = world.view()
        await viewer.is_watching.wait()
        os.kill(pid_of(engine), signal.SIGSTOP)
        await replace_stuck(engine, hand_watch)
        await until(lambda: len(viewer.reader.snapshots) == 2)
        assert viewer.reader.statuses[:2] == ["stalled", "restarting"]


async def test_a_stop_is_announced_and_ends_the_feed() -> None:
    async with opened() as world:
        viewer = world.view()
        await viewer.is_watching.wait()
        await world.engine.stop()
        world.feed.close()
        await asyncio.wait_for(viewer.task, 600)
        assert viewer.reader.statuses == ["stopped"]


async def test_words_are_asked_for_where_they_are_wanted() -> None:
    for with_words in (False, True):
        async with opened(with_words=with_words) as world:
            viewer = world.view()
            await viewer.is_watching.wait()
            await read(world.engine.submit(request("r", (271,), max_tokens=3)))
            await world.all_told(1)
            told = [
                token for turn in viewer.reader.turns for words in turn.words for token in words.token_ids
            ]
            assert told == ([271, *expected((271,), 3)] if with_words else [])
