"""A server is followed over a real socket: what it says, when it is gone, when it refuses."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from nanoserve.entrypoints.client.address import read_address
from nanoserve.entrypoints.client.protocol import (
    EventReader,
    ProtocolError,
    ServerRefusedError,
    UnreachableError,
)
from nanoserve.entrypoints.client.top import following
from nanoserve.entrypoints.client.top.following import (
    ServerDescription,
    ServerLost,
    ServerStatus,
    ServerUpdate,
    follow,
)
from tests.patience import PATIENCE
from tests.unit.entrypoints.client.top.status_server import running, status_server

FIRST_PAUSE = 1 / 64


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE", FIRST_PAUSE)


def take(url: str, count: int, key: str | None = None) -> list[ServerUpdate]:
    async def gather() -> list[ServerUpdate]:
        taken: list[ServerUpdate] = []
        async with contextlib.aclosing(follow(read_address(url, key))) as updates, asyncio.timeout(PATIENCE):
            async for update in updates:
                taken.append(update)
                if len(taken) == count:
                    break
        return taken

    return asyncio.run(gather())


def test_statuses_come_as_they_are_sent_and_steps_are_not_asked_for() -> None:
    first = {"status": "starting", "finished": {"stop": 3}}
    with status_server(first, {"status": "ready", "new field": 1}) as server:
        about, *statuses = take(server.url, 3)
    assert isinstance(about, ServerDescription)
    assert about.name == "tiny, cpu, float32"
    assert statuses == [
        ServerStatus(status="starting", finished={"stop": 3}, viewers=1),
        ServerStatus(status="ready", viewers=1),
    ]
    assert server.asked[0] == "/live?steps=false"


def test_a_server_that_hangs_up_is_lost_and_found_again() -> None:
    with status_server({"status": "ready"}, hang_up=1) as server:
        kinds = [type(each) for each in take(server.url, 6)]
    assert kinds == [ServerDescription, ServerStatus, ServerLost] * 2


def test_a_server_that_is_gone_is_tried_again_with_growing_pauses() -> None:
    async def live() -> list[ServerUpdate]:
        taken: list[ServerUpdate] = []
        with contextlib.ExitStack() as stack:
            served = stack.enter_context(status_server({"status": "ready"}))
            async with (
                contextlib.aclosing(follow(read_address(served.url))) as updates,
                asyncio.timeout(PATIENCE),
            ):
                async for update in updates:
                    taken.append(update)
                    lost = [each for each in taken if isinstance(each, ServerLost)]
                    if isinstance(update, ServerStatus) and not lost:
                        stack.close()
                    elif isinstance(update, ServerStatus):
                        return taken
                    elif isinstance(update, ServerLost) and len(lost) == 3:
                        stack.enter_context(running(served))
        return taken

    taken = asyncio.run(live())
    lost = [each for each in taken if isinstance(each, ServerLost)]
    assert [each.pause for each in lost] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert "nothing answers" in lost[-1].reason
    assert isinstance(taken[-1], ServerStatus)


def test_a_refused_connection_is_an_error_at_once() -> None:
    with status_server({"status": "ready"}) as server:
        pass
    with pytest.raises(UnreachableError, match=r"nothing answers at http://127\.0\.0\.1"):
        take(server.url, 1)


def test_a_key_is_shown_and_its_lack_is_named() -> None:
    with status_server({"status": "ready"}, key="abc") as server:
        assert isinstance(take(server.url, 2, key="abc")[1], ServerStatus)
        with pytest.raises(ServerRefusedError, match=r"401: who are you\?; give it with --api-key"):
            take(server.url, 1)


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        ({"refuse": (404, "no such page")}, ServerRefusedError, "there is no /live at .* --no-ui"),
        ({"refuse": (503, "too many viewers")}, UnreachableError, "503: too many viewers"),
        ({"endless": b"event: status\ndata: "}, ProtocolError, "an event of more than 1,048,576 bytes"),
        ({"endless": b"data:\n"}, ProtocolError, "an event of more than 1,048,576 bytes"),
        ({"kind": "text/html"}, ProtocolError, "no stream of events but text/html"),
    ],
)
def test_what_is_no_stream_of_statuses_is_refused(
    behaviour: dict[str, object], error: type[Exception], message: str
) -> None:
    with status_server({"status": "ready"}, **behaviour) as server, pytest.raises(error, match=message):
        take(server.url, 2)


def test_a_status_that_cannot_be_read_is_no_status() -> None:
    with status_server({"status": 3}) as server, pytest.raises(ProtocolError, match="of another release"):
        take(server.url, 2)


def test_events_are_cut_as_the_standard_says() -> None:
    events = EventReader(longest=100)
    body = b": note\n:\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\nevent: empty\n\ndata:3\nid: 7\n\nevent: cut"
    pieces = [body[start : start + 5] for start in range(0, len(body), 5)]
    assert [event for piece in pieces for event in events.feed(piece)] == [
        (b"a", b"1\n2"),
        (b"message", b"3"),
    ]
