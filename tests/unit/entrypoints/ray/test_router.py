"""The router over replicas that are small servers of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web

from nanoserve.entrypoints.ray import router
from nanoserve.entrypoints.ray.directory import Entry
from nanoserve.entrypoints.ray.router import Door, prompt_of, words_of

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Client:
    """One request to an ASGI application, and what it got."""

    def __init__(self, body: bytes = b"{}", path: str = "/v1/chat/completions") -> None:
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"a=%20b",
            "headers": [(b"host", b"example.com"), (b"authorization", b"Bearer k")],
        }
        self.leaves = asyncio.Event()
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.status = 0
        self.body = b""
        self._unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> dict[str, Any]:
        if self._unread:
            return self._unread.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            self.body += message["body"]
            self.pieces.put_nowait(message["body"])

    async def ask(self, door: Door) -> Client:
        await door(self.scope, self.receive, self.send)
        return self


@contextlib.asynccontextmanager
async def served(*handlers: Handler, policy: str = "round-robin") -> AsyncIterator[tuple[Door, list[Entry]]]:
    """A router in front of one replica for each handler; the list is its directory."""
    async with contextlib.AsyncExitStack() as closing:
        entries = []
        for each in handlers:
            runner = web.ServerRunner(web.Server(each, handler_cancellation=True), shutdown_timeout=0)
            await runner.setup()
            closing.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            entries.append(Entry("replica", f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"))  # type: ignore[union-attr]

        async def listed() -> list[Entry]:
            return entries

        door = Door(policy, listed, max_body_size=100)
        door.note(entries)
        await closing.enter_async_context(door.open())
        yield door, entries


async def fine(request: web.BaseRequest) -> web.Response:
    seen = {
        "path": request.raw_path,
        "host": request.headers["host"],
        "key": request.headers["authorization"],
    }
    return web.Response(text=json.dumps(seen), status=201)


async def draining(_request: web.BaseRequest) -> web.Response:
    return web.Response(status=503, text="draining")


async def dying(request: web.BaseRequest) -> web.Response:
    request.transport.abort()  # type: ignore[union-attr]
    return web.Response()


async def breaking(request: web.BaseRequest) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await answer.prepare(request)
    await answer.write(b"data: 1\n\n")
    request.transport.close()  # type: ignore[union-attr]
    return answer


def test_a_request_is_passed_on_as_it_is_and_its_answer_too() -> None:
    async def run() -> None:
        async with served(fine) as (door, _):
            client = await Client().ask(door)
            assert client.status == 201
            assert json.loads(client.body) == {
                "path": "/v1/chat/completions?a=%20b",
                "host": "example.com",
                "key": "Bearer k",
            }

    asyncio.run(run())


def test_replicas_that_die_or_refuse_cost_nothing_while_another_answers() -> None:
    async def run() -> None:
        async with served(dying, draining, fine) as (door, entries):
            assert [(await Client().ask(door)).status for _ in range(3)] == [201] * 3
            del entries[2]
            door.note([Entry("replica", entries[1].address), Entry("router", "http://nowhere")])
            gone = next(each for each in door._known.values() if each.number == 2)
            gone.seen -= 100
            door.note(entries)
            last = await Client().ask(door)
            assert (last.status, last.body) == (503, b"draining")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completions", b'data: {"error":{"message"'),
        ("/v1/messages", b'event: error\ndata: {"type":"error"'),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error(path: str, said: bytes) -> None:
    async def run() -> None:
        async with served(breaking) as (door, _):
            client = await Client(path=path).ask(door)
            assert client.status == 200
            assert client.body.startswith(b"data: 1\n\n" + said)
            assert client.body.endswith(b"\n\n")

    asyncio.run(run())


def test_a_client_that_leaves_hangs_up_at_the_replica_and_a_lost_replica_ends_its_streams() -> None:
    ended: list[asyncio.Event] = []

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        ended.append(asyncio.Event())
        try:
            await answer.prepare(request)
            await answer.write(b"data: 1\n\n")
            await asyncio.Event().wait()
        finally:
            ended[-1].set()
        return answer

    async def run() -> None:
        async with served(endless) as (door, _):
            door_views = door._router._views
            client = Client()
            asking = asyncio.create_task(client.ask(door))
            await client.pieces.get()
            assert [(view.requests, view.pending_tokens) for view in door_views.values()] == [(1, 0)]
            client.leaves.set()
            await asking
            await ended[0].wait()
            assert [view.requests for view in door_views.values()] == [0]
            client = Client()
            asking = asyncio.create_task(client.ask(door))
            await client.pieces.get()
            next(iter(door._known.values())).seen -= 100
            door.note([])
            await asking
            assert b"replica_lost" in client.body

    asyncio.run(run())


def test_where_no_replica_is_left_the_answer_comes_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "PATIENCE", 0.0)

    async def run() -> None:
        async with served() as (door, _):
            client = await Client().ask(door)
            assert client.status == 503
            assert b"no_replica" in client.body
            assert (await Client(b"x" * 101).ask(door)).status == 413

    asyncio.run(run())


def test_turns_of_a_conversation_go_where_the_first_one_went() -> None:
    asked: list[int] = []

    def replica(number: int) -> Handler:
        async def answer(_request: web.BaseRequest) -> web.Response:
            asked.append(number)
            return web.Response()

        return answer

    async def run() -> None:
        async with served(*map(replica, range(4)), policy="lmetric") as (door, _):
            door._max_body_size = 10**6
            messages = [{"role": "user", "content": "word " * 400}]
            for turn in range(6):
                body = {"temperature": turn, "messages": messages, "model": "m"}
                await Client(json.dumps(body).encode()).ask(door)
                messages.append({"role": "user", "content": f"and then {turn}?"})

    asyncio.run(run())
    assert len(asked) == 6
    assert len(set(asked)) == 1


def test_prompts_that_begin_alike_have_words_that_begin_alike() -> None:
    long, other = {"prompt": "a" * 500}, {"stream": True, "prompt": "a" * 500 + "b"}
    words = [words_of(prompt_of(json.dumps(each).encode())) for each in (long, other)]
    assert words[0][:125] == words[1][:125]
    assert words[0] != words[1]
    assert words_of(prompt_of(b"")) == words_of(prompt_of(b"[1]")) == words_of(prompt_of(b"\xff")) == (0,)
