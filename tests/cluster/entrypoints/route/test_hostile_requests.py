"""Requests that cannot be passed on or read, and those that come while the router leaves: no replica is blamed for them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from nanoserve_cluster.entrypoints.route import prompts
from nanoserve_cluster.entrypoints.route.prompts import read_prompt, token_ids
from tests.cluster.entrypoints.route.test_proxy import Answered, Pieces, Server, World, is_away, ok, refuses
from tests.patience import PATIENCE

DEEP = b'{"prompt":' + b"[" * 1500 + b"]" * 1500 + b"}"


def ask(world: World, *arguments: Any, **named: Any) -> Answered:
    async def go() -> Answered:
        await world.fleet.look()
        return await world.ask(*arguments, **named)

    return asyncio.run(go())


def code(answer: Answered) -> str:
    found: str = msgspec.json.decode(answer.body)["error"]["code"]
    return found


def test_a_replica_that_does_not_tokenize_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_TOKENIZE_SECONDS", 0.0)

    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    client = httpx.AsyncClient(transport=httpx.MockTransport(never))
    asked = token_ids(client, "http://a:1", "/v1/completions", [], {"prompt": "Once"})
    assert asyncio.run(asyncio.wait_for(asked, PATIENCE)) is None


@pytest.mark.parametrize("tokens", [b'{"tokens":[[1]]}', b"{}", b"[" * 5000])
def test_an_answer_without_tokens_is_no_answer(tokens: bytes) -> None:
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Pieces(tokens)))
    )
    asked = token_ids(client, "http://a:1", "/v1/completions", [], {"prompt": "Once"})
    assert asyncio.run(asked) is None


def test_only_the_beginning_of_a_long_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_MOST_IDS", 3)
    guessed, fields = read_prompt([], b'{"prompt":[11,12,13,14,15,16,17]}')
    assert len(guessed.ids) == 3
    assert asyncio.run(token_ids(httpx.AsyncClient(), "", "", [], fields)) == (11, 12, 13)


def test_while_the_router_leaves_requests_are_refused_and_connections_closed() -> None:
    world = World(ok)
    world.proxy.is_draining = True
    refused = ask(world)
    assert (refused.status, code(refused), world.asked) == (503, "draining", [])
    assert refused.headers["connection"] == "close"


def test_answers_under_way_close_their_connections_when_the_router_leaves() -> None:
    def leaves(request: httpx.Request) -> httpx.Response:
        world.proxy.is_draining = True
        return ok(request)

    world = World(leaves)
    answer = ask(world)
    assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_spaces_around_the_values_of_headers_are_not_passed_on() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return ok(request)

    ask(World(answer), authorization="Bearer k \t")
    assert dict(seen[0].headers.raw)[b"authorization"] == b"Bearer k"


def test_a_request_that_cannot_be_written_is_the_clients_fault() -> None:
    def refuses_to_send(_: httpx.Request) -> httpx.Response:
        raise httpx.LocalProtocolError("Illegal header value")

    world = World(refuses_to_send, ok)
    answer = ask(world)
    assert (answer.status, code(answer), world.asked) == (400, "invalid_request", ["a"])
    assert not world.fleet.replicas[0].suspected.is_set()


def test_json_that_is_too_deep_to_read_is_the_replicas_to_refuse() -> None:
    world = World(ok, policy="lmetric")
    assert (ask(world, DEEP).status, world.asked) == (200, ["a"])


@pytest.mark.parametrize(
    ("path", "query"),
    [("*", b""), ("x", b""), ("/x/../metrics", b""), ("/./metrics", b""), ("/\x7f", b""), ("/", b"\xff")],
)
def test_what_no_url_can_say_is_refused(path: str, query: bytes) -> None:
    world = World(ok)
    answer = ask(world, path=path, query=query)
    assert (answer.status, code(answer), world.asked) == (400, "invalid_target", [])


@pytest.mark.parametrize("query", [b"", b"q=what?", b"q=..", b'q="x"'])
def test_queries_pass_as_they_are(query: bytes) -> None:
    targets: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        targets.append(request.url.raw_path)
        return ok(request)

    assert ask(World(answer), path="/v1/models", query=query).status == 200
    assert targets == [b"/v1/models" + (b"?" + query.replace(b'"', b"%22") if query else b"")]


def is_wrong(_: httpx.Request) -> httpx.Response:
    return httpx.Response(400, stream=Pieces(b"what?"))


@pytest.mark.parametrize(("server", "blocks"), [(ok, 2), (is_wrong, 0), (refuses, 0), (is_away, 0)])
def test_only_prompts_that_were_computed_are_believed_to_be_cached(server: Server, blocks: int) -> None:
    world = World(server, policy="lmetric")
    ask(world, msgspec.json.encode({"prompt": "x" * (2 * 16 * 4)}))
    assert world.fleet.table.cached_blocks(0) == blocks


def test_what_a_refused_prompt_shares_with_others_stays_cached() -> None:
    world = World(ok, policy="lmetric")
    ask(world, msgspec.json.encode({"prompt": "x" * (2 * 16 * 4)}))
    world.servers["a"] = is_wrong
    asyncio.run(world.ask(msgspec.json.encode({"prompt": "x" * (2 * 16 * 4) + "y" * (3 * 16 * 4)})))
    assert world.fleet.table.cached_blocks(0) == 2
