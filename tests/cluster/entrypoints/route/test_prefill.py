"""Long prompts go to replicas that compute them first; whatever those do, the request is answered by one that decodes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from nanoserve_cluster.entrypoints.route.fleet import Fleet, RoutingTable, read_replicas
from nanoserve_cluster.entrypoints.route.prefill import PrefillStage
from nanoserve_cluster.entrypoints.route.proxy import Proxy
from nanoserve_cluster.entrypoints.route.settings import RouteSettings
from tests.cluster.entrypoints.route.test_proxy import (
    Answered,
    Pieces,
    Server,
    World,
    is_away,
    ok,
    refuses,
    streaming,
)

LONG = "word " * 400


def invalid(_: httpx.Request) -> httpx.Response:
    return httpx.Response(400, stream=Pieces(b"no"))


def staged(*prefill: Server, policy: str = "longest-prefix") -> World:
    """A router in front of `a`, which decodes, and of `b` and `c`, which compute prompts of 100 tokens and more."""
    world = World(ok, *prefill, policy=policy)
    replicas = read_replicas([f"http://{each}:1" for each in "abc"[: 1 + len(prefill)]])
    client = world.fleet.client
    world.fleet = Fleet(replicas[:1], RoutingTable(policy, 16), client, RouteSettings())
    fleet = Fleet(replicas[1:], RoutingTable("round-robin", 16), client, RouteSettings())
    world.proxy = Proxy(world.fleet, None, 40_000, PrefillStage(fleet, 100))
    return world


async def ask(world: World, path: str = "/v1/completions", **fields: Any) -> Answered:
    await world.fleet.look()
    assert world.proxy._prefill is not None
    await world.proxy._prefill.fleet.look()
    return await world.ask(msgspec.json.encode(fields), path=path)


@pytest.mark.parametrize(
    ("path", "fields", "wanted"),
    [
        (
            "/v1/completions",
            {"prompt": LONG, "max_tokens": 9, "stream": True, "n": 3, "seed": 4, "logprobs": 2},
            {"prompt": LONG, "seed": 4, "max_tokens": 1},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": LONG}], "max_tokens": 9, "tools": []},
            {"messages": [{"role": "user", "content": LONG}], "tools": [], "max_completion_tokens": 1},
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": LONG}], "system": "s", "max_tokens": 9},
            {"messages": [{"role": "user", "content": LONG}], "system": "s", "max_tokens": 1},
        ),
    ],
)
def test_a_long_prompt_is_computed_before_the_request_is_passed_on(
    path: str, fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    asked: list[Any] = []

    def keep(request: httpx.Request) -> httpx.Response:
        asked.append(msgspec.json.decode(request.content))
        return ok(request)

    world = staged(keep)
    world.servers["a"] = keep
    assert asyncio.run(ask(world, path, **fields)).body == b'{"fine":true}'
    assert world.asked == ["b", "a"]
    assert asked == [wanted, fields]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "short"}),
        ("/v1/responses", {"input": LONG}),
        ("/tokenize", {"prompt": LONG}),
        ("/v1/completions", {"prompt": LONG, "prompt_logprobs": 0}),
        ("/v1/completions", {"prompt": LONG, "echo": True, "logprobs": 0}),
    ],
)
def test_other_requests_go_where_they_are_answered(path: str, fields: dict[str, Any]) -> None:
    world = staged(ok)
    asyncio.run(ask(world, path, **fields))
    assert world.asked == ["a"]


async def test_what_is_cached_where_it_is_decoded_is_not_computed_elsewhere() -> None:
    world = staged(ok)
    for more in ("", "and then"):
        await ask(world, prompt=LONG + more)
    assert world.asked == ["b", "a", "a"]


@pytest.mark.parametrize(
    ("prefill", "asked"),
    [
        ((is_away, ok), ["b", "c", "a"]),
        ((refuses, ok), ["b", "c", "a"]),
        ((streaming(b"half", kind="application/json", breaks=True), is_away), ["b", "c", "a"]),
        ((invalid, ok), ["b", "a"]),
    ],
)
def test_no_request_is_lost_with_a_replica_that_computes_prompts(
    prefill: tuple[Server, Server], asked: list[str]
) -> None:
    world = staged(*prefill)
    answer = asyncio.run(ask(world, prompt=LONG))
    assert (answer.status, answer.body) == (200, b'{"fine":true}')
    assert world.asked == asked


def test_without_any_that_is_up_requests_are_answered() -> None:
    world = staged(ok)
    world.unwell = {"b"}
    assert asyncio.run(ask(world, prompt=LONG)).status == 200
    assert world.asked == ["a"]


def test_they_are_among_the_replicas_that_are_told_of() -> None:
    world = staged(ok)
    asyncio.run(ask(world, prompt=LONG))
    metrics = asyncio.run(world.ask(path="/metrics")).body.decode()
    assert 'nanoserve:router_requests_total{outcome="answered",replica="http://b:1"} 1.0' in metrics
    assert 'nanoserve:router_replica_up{replica="http://b:1"} 1.0' in metrics
    assert b"http://b:1" in asyncio.run(world.ask(path="/health")).body
