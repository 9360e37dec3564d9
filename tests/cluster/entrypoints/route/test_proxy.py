from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import attrs
import httpx
import msgspec
import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.entrypoints.route.fleet import Fleet, RoutingTable, read_replicas
from nanoserve_cluster.entrypoints.route.proxy import Proxy
from nanoserve_cluster.entrypoints.route.settings import RouteSettings
from tests.patience import PATIENCE

SSE = {"content-type": "text/event-stream; charset=utf-8"}
Server = Callable[[httpx.Request], httpx.Response]


class Pieces(httpx.AsyncByteStream):
    """A body that may break off, or wait for ever, behind its last piece."""

    def __init__(self, *pieces: bytes, breaks: bool = False, waits: bool = False) -> None:
        self.pieces, self.breaks, self.waits, self.is_closed = pieces, breaks, waits, False
        self.is_read = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for each in self.pieces:
            yield each
        self.is_read.set()
        if self.breaks:
            raise httpx.ReadError("the connection was reset")
        if self.waits:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.is_closed = True


@attrs.define
class Answered:
    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    is_whole: bool = False


class World:
    """A router in front of servers `a`, `b`, ... that are functions; which one answered is in `asked`."""

    def __init__(
        self, *servers: Server, policy: str = "round-robin", names: Sequence[str] | None = None
    ) -> None:
        self.servers = dict(zip("abc", servers, strict=False))
        self.asked: list[str] = []
        self.unwell: set[str] = set()
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        replicas = read_replicas([f"http://{each}:1" for each in self.servers])
        table = RoutingTable(policy, 16)
        self.fleet = Fleet(replicas, table, client, RouteSettings())
        self.proxy = Proxy(self.fleet, names, 4000)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.host
        if request.url.path == "/readyz":
            if name in self.unwell:
                raise httpx.ConnectError("refused")
            return httpx.Response(200, stream=Pieces())
        self.asked.append(name)
        return self.servers[name](request)

    async def ask(
        self,
        body: bytes = b"{}",
        *,
        path: str = "/v1/completions",
        query: bytes = b"x=1",
        leaves: Awaitable[Any] | None = None,
        **headers: str,
    ) -> Answered:
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": query,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        incoming = [{"type": "http.request", "body": body}]
        found = Answered()

        async def receive() -> Any:
            if incoming:
                return incoming.pop()
            await (leaves or asyncio.Event().wait())
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert not found.status
                found.status = message["status"]
                found.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                found.body += message["body"]
                found.is_whole = not message.get("more_body")

        await self.proxy(scope, receive, send)  # type: ignore[arg-type]
        return found


def ok(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=Pieces(b'{"fine"', b":true}"))


def refuses(_: httpx.Request) -> httpx.Response:
    return httpx.Response(503, stream=Pieces(b"full"), headers={"retry-after": "7"})


def is_away(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def streaming(*pieces: bytes, kind: str = SSE["content-type"], **how: bool) -> Server:
    return lambda _: httpx.Response(200, headers={"content-type": kind}, stream=Pieces(*pieces, **how))


async def _ask(world: World, *arguments: Any, **named: Any) -> Answered:
    await world.fleet.look()
    return await world.ask(*arguments, **named)


@pytest.mark.parametrize(
    ("path", "headers", "told"),
    [
        ("/v1/chat/completions", {}, lambda body: body["error"]["code"] == "no_replica"),
        ("/v1/messages", {}, lambda body: body["error"]["type"] == "overloaded_error"),
        ("/v1/models", {"anthropic-version": "1"}, lambda body: body["type"] == "error"),
        ("/api/chat", {}, lambda body: body["error"].startswith("No server is there")),
    ],
)
def test_a_refusal_of_its_own_has_the_shape_of_the_paths_protocol(
    path: str, headers: dict[str, Any], told: Callable[[Any], bool]
) -> None:
    answer = asyncio.run(World(is_away).ask(path=path, **headers))
    assert (answer.status, told(msgspec.json.decode(answer.body))) == (503, True)


@pytest.mark.parametrize(
    "broken",
    [
        is_away,
        refuses,
        streaming(breaks=True),
        streaming(b'{"half', kind="application/json", breaks=True),
    ],
)
def test_what_has_no_answer_yet_goes_to_another_replica(broken: Server) -> None:
    world = World(broken, ok)
    answer = asyncio.run(_ask(world))
    assert (answer.status, answer.body, answer.is_whole) == (200, b'{"fine":true}', True)
    assert world.asked == ["a", "b"]


def test_no_replica_is_asked_twice_however_much_a_policy_likes_it() -> None:
    calls: list[httpx.Request] = []

    def breaks(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        assert len(calls) <= 2
        return is_away(request)

    world = World(breaks, breaks, policy="bounded-hash")
    assert asyncio.run(_ask(world)).status == 503
    assert sorted(world.asked) == ["a", "b"]


EVENTS, LINES = "text/event-stream", "application/x-ndjson"
GONE = "The server that made this answer has gone."
DETAIL = {"message": GONE, "type": "server_error", "param": None, "code": "replica_lost"}
ANTHROPICS = {"type": "error", "error": {"type": "api_error", "message": GONE}}


@pytest.mark.parametrize(
    ("asked", "kind", "piece", "name", "told"),
    [
        ({"path": "/v1/completions"}, EVENTS, b"data: 1\n\n", b"", {"error": DETAIL}),
        ({"path": "/v1/chat/completions"}, EVENTS, b": ping\n\n", b"", {"error": DETAIL}),
        ({"path": "/v1/messages"}, EVENTS, b"data: 1\n\n", b"event: error\n", ANTHROPICS),
        (
            {"path": "/v1/odd", "anthropic-version": "1"},
            EVENTS,
            b"data: 1\n\n",
            b"event: error\n",
            ANTHROPICS,
        ),
        (
            {"path": "/v1/responses"},
            EVENTS,
            b'data: {"sequence_number":6}\n\ndata: {"sequence_number": 7, "a": "\\"sequence_number\\":90"}\n\n',
            b"event: error\n",
            {"type": "error", "code": "replica_lost", "message": GONE, "param": None, "sequence_number": 8},
        ),
        ({"path": "/api/chat"}, LINES, b'{"a":1}\n', b"", {"error": GONE}),
    ],
)
def test_a_stream_that_breaks_off_ends_with_an_error_as_its_protocol_writes_it(
    asked: dict[str, str], kind: str, piece: bytes, name: bytes, told: dict[str, Any]
) -> None:
    world = World(streaming(*(bytes([each]) for each in piece), kind=kind, breaks=True), ok)
    answer = asyncio.run(_ask(world, **asked))
    assert answer.body.startswith(piece + name)
    frame = answer.body.removeprefix(piece + name)
    if "error" in told and kind == EVENTS and not name:
        assert frame.endswith(b"\n\ndata: [DONE]\n\n")
        frame = frame.removesuffix(b"data: [DONE]\n\n")
    begin, end = (b"data: ", b"\n\n") if kind == EVENTS else (b"", b"\n")
    assert frame.startswith(begin)
    assert frame.endswith(end)
    assert msgspec.json.decode(frame.removeprefix(begin)) == told
    assert answer.is_whole
    assert world.asked == ["a"]


@pytest.mark.parametrize(
    ("frozen", "asked", "begin", "end"),
    [
        (streaming(waits=True), ["a", "b"], b'{"fine":true}', b""),
        (streaming(b'{"half', kind="application/json", waits=True), ["a", "b"], b'{"fine":true}', b""),
        (streaming(b"data: 1\n\n", waits=True), ["a"], b'data: 1\n\ndata: {"error":', b"\n\n"),
    ],
)
async def test_a_replica_that_says_nothing_any_more_loses_its_requests_after_so_many_looks(
    frozen: Server, asked: list[str], begin: bytes, end: bytes
) -> None:
    is_asked = asyncio.Event()

    def freeze(request: httpx.Request) -> httpx.Response:
        is_asked.set()
        return frozen(request)

    world = World(freeze, ok)
    answering = asyncio.create_task(_ask(world))
    await is_asked.wait()
    for unwell in ({"a"}, {"a"}, set[str](), {"a"}, {"a"}):
        world.unwell = unwell
        await world.fleet.look()
    assert world.fleet.replicas[0].requests == 1
    await world.fleet.look()
    answer = await answering
    assert answer.is_whole
    assert answer.body.startswith(begin)
    assert answer.body.endswith(end)
    assert world.asked == asked


async def test_a_replica_that_goes_on_with_its_answers_keeps_them_though_it_is_silent_about_its_health() -> (
    None
):
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    class Coming(Pieces):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while piece := await pieces.get():
                yield piece

    world = World(lambda _: httpx.Response(200, headers=SSE, stream=Coming()))
    answering = asyncio.create_task(_ask(world))
    for number in range(2 * RouteSettings().health_failures):
        pieces.put_nowait(b"data: %d\n\n" % number)
        for _ in range(20):
            await asyncio.sleep(0)
        world.unwell = {"a"}
        await world.fleet.look()
    pieces.put_nowait(b"")
    answer = await answering
    assert answer.is_whole
    assert b"error" not in answer.body


async def test_a_request_that_takes_its_time_to_end_is_given_up_once() -> None:
    world = World(ok)
    (replica,) = world.fleet.replicas.values()
    may_end = asyncio.Event()

    async def ends_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    waiting = asyncio.create_task(replica.heard(ends_late()))
    world.unwell = {"a"}
    for _ in range(2 * RouteSettings().health_failures):
        await world.fleet.look()
    may_end.set()
    with pytest.raises(httpx.ReadTimeout):
        await waiting


def test_a_stream_that_breaks_off_within_a_piece_is_cut_off() -> None:
    answer = asyncio.run(_ask(World(streaming(b"data: 1\n\ndata: ", breaks=True))))
    assert (answer.body, answer.is_whole) == (b"data: 1\n\ndata: ", False)


def test_a_refusal_of_all_is_passed_on_and_none_to_ask_is_a_refusal_too() -> None:
    refused = asyncio.run(_ask(World(refuses, is_away)))
    assert (refused.status, refused.headers["retry-after"]) == (503, "7")
    nobody = asyncio.run(_ask(World(is_away)))
    assert (nobody.status, nobody.headers["retry-after"]) == (503, "1")
    assert msgspec.json.decode(nobody.body)["error"]["code"] == "no_replica"


async def test_a_client_that_leaves_ends_its_request_at_the_replica() -> None:
    stream = Pieces(b"data: 1\n\n", waits=True)
    world = World(lambda _: httpx.Response(200, headers=SSE, stream=stream))
    answer = await _ask(world, leaves=stream.is_read.wait())
    assert not answer.is_whole
    assert stream.is_closed
    assert world.fleet.replicas[0].requests == world.proxy.living == 0


async def test_a_replica_is_watched_on_whatever_a_look_at_it_raises() -> None:
    world, raised = World(ok), asyncio.Event()
    answer, suspected = world._answer, world.fleet.replicas[0].suspected

    def fail_once(request: httpx.Request) -> httpx.Response:
        if raised.is_set():
            return answer(request)
        raised.set()
        raise RuntimeError("a cancel scope of another task")

    world.fleet.client = httpx.AsyncClient(transport=httpx.MockTransport(fail_once))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        watching = group.create_task(world.fleet.watch())
        await raised.wait()
        while not world.fleet.up:
            suspected.set()
            await asyncio.sleep(0)
        watching.cancel()


def test_keys_pass_and_headers_of_a_connection_do_not() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        headers = {"connection": "close, X-Of-This-One", "x-of-this-one": "1", "x-request-id": "7"}
        return httpx.Response(200, stream=Pieces(b"1"), headers=headers)

    found = asyncio.run(
        _ask(
            World(answer),
            authorization="Bearer k",
            connection="keep-alive,later",
            later="1",
            host="127.0.0.1:9",
        )
    )
    (request,) = seen
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["host"] == "a:1"
    assert not {"connection", "later"} & set(request.headers)
    assert str(request.url) == "http://a:1/v1/completions?x=1"
    assert found.headers["x-request-id"] == "7"
    assert not {"connection", "x-of-this-one"} & set(found.headers)


async def test_a_replica_that_is_away_gets_no_requests_until_it_is_back() -> None:
    world = World(ok, ok)
    for world.unwell, wanted in ((set(), "ab"), ({"a"}, "bb"), (set(), "ab")):
        await world.fleet.look()
        world.asked = []
        await world.ask()
        await world.ask()
        assert sorted(world.asked) == sorted(wanted)


async def test_a_conversation_stays_where_it_began_and_others_spread() -> None:
    world = World(ok, ok, policy="lmetric")
    places: list[set[str]] = []
    await world.fleet.look()
    for number in range(24):  # by chance all at one replica: once in eight million
        messages = [{"role": "user", "content": f"{number} foxes " * 40}]
        world.asked = []
        for _ in range(4):
            await world.ask(msgspec.json.encode({"messages": messages}), path="/v1/chat/completions")
            messages += [
                {"role": "assistant", "content": "So."},
                {"role": "user", "content": "And then?"},
            ]
        places.append(set(world.asked))
    assert all(len(each) == 1 for each in places)
    assert len(set.union(*places)) == 2


def test_other_sites_and_large_bodies_are_turned_away() -> None:
    world = World(ok, names=["llm.example"])
    assert asyncio.run(_ask(world, host="evil.example")).status == 421
    assert asyncio.run(_ask(world, host="llm.example:80")).status == 200
    assert asyncio.run(_ask(world, b"x" * 4001)).status == 413


async def test_health_and_metrics_are_the_routers_own() -> None:
    world = World(ok, is_away)
    world.unwell = {"b"}
    assert (await world.ask(path="/health")).status == 503
    await world.fleet.look()
    await world.ask()
    health = await world.ask(path="/health")
    assert health.status == 200
    assert msgspec.json.decode(health.body)["replicas"] == {
        "http://a:1": {"requests": 0},
        "http://b:1": "refused",
    }
    lines = (await world.ask(path="/metrics")).body.decode().splitlines()
    assert 'nanoserve:router_requests_total{outcome="answered",replica="http://a:1"} 1.0' in lines
    assert 'nanoserve:router_replica_up{replica="http://b:1"} 0.0' in lines
    world.proxy.is_draining = True
    assert (await world.ask(path="/readyz")).status == 503


@pytest.mark.parametrize("written", ["ftp://a", "http://a,0", "http://a,1,2,3", "http://a,x"])
def test_what_is_no_replica_is_refused(written: str) -> None:
    with pytest.raises(BadValueError, match=r"^prefill_replica: "):
        read_replicas([written], "prefill_replica")


def test_ports_of_events_stand_behind_a_replica() -> None:
    plain, both = read_replicas(["http://a:8000", "http://[::1]:8000,5557,5558"])
    assert (plain.events, plain.replay) == (None, None)
    assert (both.events, both.replay) == ("tcp://[::1]:5557", "tcp://[::1]:5558")
    assert Counter(each.number for each in (plain, both)) == {0: 1, 1: 1}


async def test_replicas_come_and_go_while_others_answer() -> None:
    world = World(ok, ok)
    fleet, (a, b) = world.fleet, ("http://a:1", "http://b:1")
    fleet.replicas.clear()
    watching = asyncio.create_task(fleet.watch())
    fleet.adopt({a})
    await fleet.look()
    assert ((await world.ask()).status, world.asked) == (200, ["a"])
    fleet.adopt({a, b})
    await fleet.look()
    fleet.adopt(set())  # a directory that has lost its memory changes nothing
    assert sorted(each.url for each in fleet.replicas.values()) == [a, b]
    world.unwell.add("a")
    await fleet.look()
    lost = next(each for each in fleet.replicas.values() if each.url == a)
    for lost.requests in (1, 0):  # while it has some it is looked at, so that they can be given up
        fleet.adopt({b})
        assert (lost in fleet.replicas.values()) == bool(lost.requests)
    assert [each.url for each in fleet.replicas.values()] == [b]
    assert fleet._watching.keys() == fleet.replicas.keys()
    await asyncio.gather(*(world.ask() for _ in range(3)))
    assert world.asked[-3:] == ["b"] * 3
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
