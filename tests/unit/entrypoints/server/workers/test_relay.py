"""A request that another process answers arrives there whole; slow clients hold it back, and what leaves is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from structlog.testing import capture_logs

from nanoserve.entrypoints.server.workers.relay import Relay, RelayedApp

App = Callable[[Any, Any, Any], Awaitable[None]]
SCOPE: Any = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/café",
    "raw_path": b"/caf%C3%A9",
    "query_string": b"a=b",
    "root_path": "",
    "headers": [(b"host", b"here"), (b"x", b"\xff")],
    "client": ("127.0.0.1", 5),
    "server": None,
    "state": {"ours": object()},
}


@contextlib.asynccontextmanager
async def relayed(app: App) -> AsyncIterator[Relay]:
    ours, theirs = socket.socketpair()
    answering = RelayedApp(app)
    answering.watch(theirs)
    yield Relay(ours)
    while answering._answering:  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0)
    answering.leave(theirs)
    answering.leave(theirs)
    ours.close()


def client(*messages: Any) -> Callable[[], Awaitable[Any]]:
    """What it sends; then it stays."""
    left = [*messages]

    async def receive() -> Any:
        if left:
            return left.pop(0)
        return await asyncio.Event().wait()

    return receive


async def some_turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def ignore(_message: Any) -> None:
    """A client that reads and says nothing of it."""


async def test_all_of_a_request_and_of_its_answer_arrives() -> None:
    scopes: list[Any] = []
    got: list[Any] = []
    said: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        while not got or got[-1]["more_body"]:
            got.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"y", b"\xfe")]})
        await send({"type": "http.response.body", "body": bytes(300_000), "more_body": False})

    async def send(message: Any) -> None:
        said.append(message)

    parts = [
        {"type": "http.request", "body": b"one", "more_body": True},
        {"type": "http.request", "body": b"two", "more_body": False},
    ]
    async with relayed(app) as relay:
        await relay(SCOPE, client(*parts), send)
    assert got == parts
    assert {**scopes[0], "state": None, "asgi": None} == {**SCOPE, "state": None, "asgi": None}
    assert scopes[0]["state"] == {}
    assert said[0]["status"] == 200
    assert [tuple(each) for each in said[0]["headers"]] == [(b"y", b"\xfe")]
    assert said[1]["body"] == bytes(300_000)


async def test_an_answer_arrives_whole_though_the_request_comes_behind_its_end() -> None:
    said: list[int] = []
    ended, asked = asyncio.Event(), asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for _ in range(3):
            await send({"type": "http.response.body", "body": bytes(50_000), "more_body": True})
        ended.set()

    async def receive() -> Any:
        await ended.wait()
        await some_turns()
        if asked.is_set():
            await asyncio.Event().wait()
        asked.set()
        return {"type": "http.request", "body": bytes(1_000_000), "more_body": True}

    async def send(message: Any) -> None:
        await asked.wait()
        await some_turns()
        said.append(len(message["body"]))

    async with relayed(app) as relay:
        await relay(SCOPE, receive, send)
    assert said == [50_000] * 3


async def test_a_client_that_leaves_is_noticed_where_it_is_answered() -> None:
    seen = asyncio.Event()

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        seen.set()

    async with relayed(app) as relay:
        await relay(SCOPE, client({"type": "http.disconnect"}), ignore)
        await seen.wait()


async def test_a_process_that_has_lost_a_client_is_noticed_where_it_is_answered() -> None:
    seen, begun = asyncio.Event(), asyncio.Event()

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        seen.set()

    async with relayed(app) as relay:
        asking = asyncio.ensure_future(relay(SCOPE, client(), ignore))
        await begun.wait()
        asking.cancel()
        await seen.wait()


async def test_a_client_that_reads_slowly_holds_back_who_answers() -> None:
    messages, size = 1000, 64 << 10
    sent = received = 0
    reads = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal sent
        for _ in range(messages):
            await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
            sent += 1

    async def send(_message: Any) -> None:
        nonlocal received
        await reads.wait()
        received += 1

    async with relayed(app) as relay:
        asking = asyncio.ensure_future(relay(SCOPE, client(), send))
        for _ in range(20_000):
            await asyncio.sleep(0)
        assert 0 < sent < messages // 10
        reads.set()
        await asking
    assert received == sent == messages


async def test_an_answer_that_fails_has_no_end_and_is_logged_and_the_next_one_arrives_whole() -> None:
    said: list[bytes] = []
    asked = 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if asked == 1:
            raise ValueError("a bug")
        await send({"type": "http.response.body", "body": b"ended", "more_body": False})

    async def send(message: Any) -> None:
        said.append(message["body"])

    with capture_logs() as logged:
        async with relayed(app) as relay:
            await relay(SCOPE, client(), send)
            assert said == [b"begun"]
            await relay(SCOPE, client(), send)
    assert said == [b"begun", b"begun", b"ended"]
    assert [(each["log_level"], str(each["exc_info"])) for each in logged] == [("error", "a bug")]
