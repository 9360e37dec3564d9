"""Replicas whose answers have no end: the router holds a bounded part of them, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from nanoserve_cluster.entrypoints.route import bounds
from nanoserve_cluster.entrypoints.route.bounds import LEAST_BYTES, MOST_BYTES, Keeping
from nanoserve_cluster.entrypoints.route.fleet import Fleet, RoutingTable, read_replicas
from nanoserve_cluster.entrypoints.route.prompts import token_ids
from nanoserve_cluster.entrypoints.route.proxy import Proxy
from nanoserve_cluster.entrypoints.route.run import client_of
from nanoserve_cluster.entrypoints.route.settings import RouteSettings
from tests.cluster.entrypoints.route.test_proxy import SSE, Server, World, ok
from tests.patience import PATIENCE

PIECE = bytes(1 << 16)
MOST_BUFFERED = 1 << 26
"""Bytes in the buffers of sockets, at the very most."""


class Endless(httpx.AsyncByteStream):
    """A body without an end; `num_bytes` of it were taken, and `seen` is called with each piece."""

    def __init__(self, seen: Callable[[], object] = lambda: None, most: float = float("inf")) -> None:
        self.num_bytes, self.is_closed, self._seen, self._most = 0, False, seen, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.num_bytes < self._most:
            self.num_bytes += len(PIECE)
            yield PIECE
            self._seen()
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        self.is_closed = True


def saying(body: httpx.AsyncByteStream, status: int = 200, kind: str = "application/json") -> Server:
    return lambda _: httpx.Response(status, headers={"content-type": kind}, stream=body)


def in_turn(bodies: Iterator[httpx.AsyncByteStream]) -> Server:
    return lambda _: httpx.Response(200, headers={"content-type": "application/json"}, stream=next(bodies))


def code(body: bytes) -> str:
    found: str = msgspec.json.decode(body)["error"]["code"]
    return found


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_of_an_answer_without_an_end_a_bounded_part_is_kept(status: int) -> None:
    body = Endless()
    world = World(saying(body, status), ok)
    await world.fleet.look()
    answer = await world.ask()
    assert (answer.status, code(answer.body)) == (502, "answer_too_large")
    assert body.num_bytes == MOST_BYTES + len(PIECE)
    assert body.is_closed
    assert world.proxy.keeping.num_bytes == 0
    assert (await world.ask()).status == 200


async def test_many_answers_without_an_end_are_bounded_together_and_stop_no_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MOST_TOGETHER", 4 * LEAST_BYTES)
    held: list[int] = []
    bodies = [Endless(lambda: held.append(world.proxy.keeping.num_bytes)) for _ in range(8)]
    fine = Endless(most=LEAST_BYTES)
    answers = itertools.chain(bodies, [fine])
    world = World(in_turn(answers))
    await world.fleet.look()
    found = await asyncio.gather(*(world.ask() for _ in range(9)))
    assert [each.status for each in found] == [502] * 8 + [200]
    assert len(found[-1].body) == LEAST_BYTES
    assert max(held) <= 9 * (LEAST_BYTES + len(PIECE))
    assert world.proxy.keeping.num_bytes == 0


async def test_a_stream_without_an_end_or_a_line_s_end_is_taken_as_fast_as_it_is_read() -> None:
    body = Endless()
    world = World(saying(body, kind=SSE["content-type"]))
    passed = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            passed.append(message["body"])
            if len(passed) == 3:
                leaves.set()
                await asyncio.Event().wait()

    async def receive() -> Any:
        if not received:
            received.append(True)
            return {"type": "http.request", "body": b"{}"}
        await leaves.wait()
        return {"type": "http.disconnect"}

    leaves, received = asyncio.Event(), list[bool]()
    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [],
    }
    await world.fleet.look()
    await asyncio.wait_for(world.proxy(scope, receive, send), PATIENCE)
    assert body.num_bytes == 3 * len(PIECE)
    assert body.is_closed


async def test_health_and_tokens_without_an_end_are_no_answers() -> None:
    bodies = [Endless(), Endless()]
    answers = iter(bodies)
    client = httpx.AsyncClient(transport=httpx.MockTransport(in_turn(answers)))
    fleet = Fleet(read_replicas(["http://a:1"]), RoutingTable("round-robin", 16), client, RouteSettings())
    await fleet.look()
    assert not fleet.up
    assert await token_ids(client, "http://a:1", "/v1/completions", [], {"prompt": "Once"}) is None
    assert bodies[0].num_bytes <= 2 << 16
    assert bodies[1].num_bytes <= 1 << 25
    assert all(each.is_closed for each in bodies)


@pytest.mark.parametrize("line", [b"x-padding: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many", "one"])
async def test_headers_without_an_end_are_read_to_a_bound(line: bytes) -> None:
    """From a real socket: the bound is that of the client library."""
    sent, replicas = [0], list[asyncio.Task[None]]()

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        replicas.append(task)
        head = await reader.readuntil(b"\r\n\r\n")
        is_health = head.startswith(b"GET /readyz")
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"content-length: 0\r\n\r\n" if is_health else b"x: "))
        try:
            while not is_health and sent[0] < MOST_BUFFERED:
                writer.write(line)
                sent[0] += len(line)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = RouteSettings(replica=(f"http://127.0.0.1:{port}",))
    async with server, client_of(settings) as client:
        fleet = Fleet(read_replicas(settings.replica), RoutingTable("round-robin", 16), client, settings)
        await fleet.look()
        assert fleet.up
        world = World(ok)
        world.fleet, world.proxy = fleet, Proxy(fleet, None, 4000)
        answer = await asyncio.wait_for(world.ask(), PATIENCE)
        assert (answer.status, code(answer.body)) == (503, "no_replica")
        await asyncio.wait_for(asyncio.gather(*replicas), PATIENCE)
    assert 0 < sent[0] < MOST_BUFFERED


def test_what_is_kept_is_counted_until_it_is_let_go() -> None:
    keeping = Keeping()
    assert asyncio.run(keeping.whole(httpx.Response(200, stream=Endless(most=1 << 17)))) == bytes(1 << 17)
    assert keeping.num_bytes == 0


@pytest.mark.parametrize("status", [199, 600, 999])
async def test_a_status_that_no_server_can_pass_on_is_no_answer(status: int) -> None:
    world = World(saying(Endless(most=1), status), ok)
    await world.fleet.look()
    assert {(await world.ask()).status for _ in range(2)} == {200}


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_has_no_length(status: int) -> None:
    """A server waits for as many bytes as it has announced."""
    headers = {"content-length": "3", "etag": "x"}
    world = World(lambda _: httpx.Response(status, headers=headers, stream=Endless(most=0)))
    await world.fleet.look()
    answer = await world.ask()
    assert answer.status == status
    assert answer.headers == {"etag": "x"}
