"""One engine in a process, used by several clients over sockets: each gets its own, and an engine that dies confuses none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import psutil

from nanoserve.adapters.engine_process.client.kept_engine import KeptEngine
from nanoserve.adapters.engine_process.client.ledger import LEDGER_NAMES
from nanoserve.adapters.engine_process.client.sharing import Member, Membership, Sharing
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.adapters.system.shared_table import SharedTable
from nanoserve.entrypoints.compose.engine_client import joined_engine
from nanoserve.ports.counts import Counts
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_link import Add, Command, Follow, Moved, Report, Turned
from nanoserve.ports.errors import DrainingError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason
from tests.unit.adapters.engine_process.client.engines import (
    RemoteEngine,
    balanced,
    expected,
    pid_of,
    read,
    request,
    scripted_engine,
    until,
    until_restarted,
)
from tests.unit.adapters.engine_process.host.scripted_host import SLOW

LONG = (SLOW, 1)
Joined = KeptEngine[Membership]
Shared = tuple[RemoteEngine, Sharing, list[Joined], list[Member]]


@contextlib.asynccontextmanager
async def shared(members: int) -> AsyncIterator[Shared]:
    """An engine with members `w1`, `w2`, ..., all of which count in one table."""
    table = SharedTable.create({"ledger": LEDGER_NAMES}, members + 1)
    rows = [table.row(number, "ledger") for number in range(members + 1)]

    def counts(number: int) -> Counts:
        return Counts(rows[number], [*rows[:number], *rows[number + 1 :]], table.lock)

    engine = scripted_engine(counts=counts(0))
    sharing = Sharing(engine)
    joined, admitted = [], []
    try:
        await engine.start()
        for number in range(1, members + 1):
            ours, theirs = socket.socketpair()
            joined.append(joined_engine(theirs, counts(number)))
            admitted.append(await sharing.admit(f"w{number}", ours))
            await joined[-1].start()
        yield engine, sharing, joined, admitted
    finally:
        await engine.stop()
        for each in joined:
            await each.keeper.gone.wait()
            await each.stop()


async def test_everyone_gets_what_is_his_and_one_ledger_counts_it_all() -> None:
    async with shared(2) as (engine, _, (one, two), _):
        asked: list[tuple[KeptEngine[Any], str]] = [
            (one, "w1.a"),
            (two, "w2.a"),
            (engine, "a"),
            (two, "w2.b"),
            (one, "w1.b"),
        ]
        prompts = [(number, number + 1) for number in range(1, 6)]
        replies = [
            client.submit(request(name, prompt))
            for (client, name), prompt in zip(asked, prompts, strict=True)
        ]
        answers = await asyncio.gather(*map(read, replies))
        assert [each.ids for each in answers] == [expected(prompt) for prompt in prompts]
        for client in (engine, one, two):
            books = client.ledger.read()
            assert (books.accepted, books.running, books.waiting) == (5, 0, 0)
        await until(lambda: engine.state is not None and engine.state.generated_tokens == 100)
        assert balanced(engine)


async def test_the_next_engine_serves_who_waits_and_goes_on_with_what_was_read() -> None:
    async with shared(2) as (engine, _, (one, two), _):
        begun = [
            client.submit(request(name, LONG, max_tokens=200))
            for client, name in ((one, "w1.x"), (two, "w2.x"))
        ]
        reading = [asyncio.ensure_future(read(each)) for each in begun]
        await until(lambda: all(each.begun for each in begun))
        whole = [
            client.submit(request(name, (7, 8), stream=False))
            for client, name in ((one, "w1.y"), (two, "w2.y"))
        ]
        psutil.Process(pid_of(engine)).kill()
        answers = await asyncio.gather(*reading)
        assert [each.ids for each in answers] == [expected(LONG, 200)] * 2
        assert [each.ids for each in await asyncio.gather(*map(read, whole))] == [expected((7, 8))] * 2
        await until_restarted(engine, 1)
        assert [one.restarts, two.restarts] == [1, 1]
        assert one.facts == two.facts == engine.facts
        assert balanced(engine)


async def test_a_member_that_has_gone_leaves_nothing_in_the_engine() -> None:
    async with shared(2) as (engine, sharing, (one, two), (first, _)):
        gone = asyncio.ensure_future(read(one.submit(request("w1.x", LONG, max_tokens=400))))
        kept = two.submit(request("w2.x", LONG, max_tokens=60))
        reading = asyncio.ensure_future(read(kept))
        await until(lambda: kept.begun)
        first.line.cut_off()
        await first.gone.wait()
        sharing.dismiss(first)
        assert isinstance((await gone).error, DrainingError)
        assert (await reading).ids == expected(LONG, 60)
        await until(lambda: not engine.totals.has_work)
        assert engine.totals._latest is not None
        assert engine.totals._latest.finished[FinishReason.ABORT.value] == 1


async def test_who_comes_while_the_engine_is_away_waits_for_the_next_one_like_all_others() -> None:
    async with shared(0) as (engine, sharing, _, _):
        killed = engine.facts
        psutil.Process(pid_of(engine)).kill()
        await until(lambda: engine.status is EngineStatus.RESTARTING)
        ours, theirs = socket.socketpair()
        joined = joined_engine(theirs)
        await sharing.admit("w1", ours)
        await joined.start()
        assert (joined.status, joined.facts) == (EngineStatus.RESTARTING, killed)
        assert (await read(joined.submit(request("w1.x")))).ids == expected((1, 2, 3))
        assert joined.facts == engine.facts
        await engine.stop()
        await joined.keeper.gone.wait()
        await joined.stop()


class RawMember:
    """A member that says and hears frames."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._frames = codec.FrameCutter()
        self._unread: list[Report] = []

    async def say(self, *commands: Command) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, b"".join(map(codec.encode_command, commands)))

    async def hear(self) -> Report:
        """The next report."""
        while not self._unread:
            data = await asyncio.get_running_loop().sock_recv(self._connection, 1 << 16)
            self._unread += [codec.decode_report(body) for body in self._frames.feed(data)]
        return self._unread.pop(0)


async def test_what_was_for_an_engine_that_has_died_does_not_reach_the_next_one() -> None:
    """A member that has not heard of the end yet will send everything again: sent twice, its request would be refused."""
    async with shared(0) as (engine, sharing, _, _):
        ours, theirs = socket.socketpair()
        member = RawMember(theirs)
        await sharing.admit("w1", ours)
        assert await member.hear() == Moved("ready", 0, engine.facts)
        await member.say(Follow(0))
        psutil.Process(pid_of(engine)).kill()
        await until_restarted(engine, 1)
        await member.say(Add(request("w1.early")))
        for status in ("restarting", "ready"):
            news = await member.hear()
            assert isinstance(news, Moved)
            assert (news.status, news.restarts) == (status, 1)
        await member.say(Follow(1), Add(request("w1.early")), Add(request("w1.late", (1, 2), max_tokens=40)))
        seen: list[Report] = []
        while not (seen and _ends(seen[-1], "w1.late")):
            seen.append(await member.hear())
        assert {type(each) for each in seen} == {Turned}
        assert [token for each in seen for token in _tokens(each, "w1.early")] == expected((1, 2, 3))
        theirs.close()


def _events(report: Report, name: str) -> list[TokensGenerated]:
    events = report.events if isinstance(report, Turned) else ()
    return [each for each in events if isinstance(each, TokensGenerated) and each.request_id == name]


def _ends(report: Report, name: str) -> bool:
    return any(each.finish_reason for each in _events(report, name))


def _tokens(report: Report, name: str) -> list[int]:
    return [token for each in _events(report, name) for token in each.token_ids]
