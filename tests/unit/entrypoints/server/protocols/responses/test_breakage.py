"""What clients of `/v1/responses` see when things break, and what the engine sees when clients leave."""

from __future__ import annotations

import functools
import json
import socket
import time
import types
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from nanoserve.ports.errors import StepFailedError
from tests.unit.entrypoints.server.protocols.protocol_world import World, once, serving
from tests.unit.entrypoints.server.protocols.responses.conftest import openai_client


def _asked_since(world: World, before: int) -> bool:
    return len(world.engine.requests) > before


def _all_expired(world: World, before: int) -> bool:
    deadline = world.engine.requests[-1].deadline if _asked_since(world, before) else None
    return deadline is not None and deadline < time.monotonic()


@pytest.fixture
def own_world() -> Iterator[World]:
    with serving(ping_interval=0.05, max_waiting_requests=2) as served:
        yield served


def test_a_failure_before_the_first_token_is_a_plain_error(asked: dict[str, Any]) -> None:
    with serving() as world, openai_client(world) as client:
        for stream in (False, True):
            world.call(lambda: world.engine.allow(0))
            before = len(world.engine.requests)
            killer = once(world, functools.partial(_asked_since, world, before), world.engine.die)
            with pytest.raises(openai.InternalServerError) as caught:
                client.responses.create(**asked, stream=stream)
            killer.join()
            assert caught.value.status_code == 500
            world.wait_until(lambda: world.service.reservations.living == 0)


def test_a_failure_in_the_middle_is_told_in_the_stream(asked: dict[str, Any]) -> None:
    with serving() as world, openai_client(world) as client:
        world.call(lambda: world.engine.allow(4))
        with client.responses.create(**asked, stream=True) as stream:
            events = iter(stream)
            seen = [next(events) for _ in range(5)]
            assert seen[-1].type == "response.output_text.delta"
            world.call(world.engine.die)
            seen += events
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        last = seen[-1]
        assert last.type == "response.failed"
        assert last.response.status == "failed"
        assert last.response.error is not None
        assert last.response.error.code == "server_error"
        world.wait_until(lambda: world.service.reservations.living == 0)


def test_a_failed_step_is_told(asked: dict[str, Any]) -> None:
    with serving(fail_at={1: StepFailedError("secret")}) as world, openai_client(world) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(**asked)
        assert "secret" not in str(caught.value)
        assert len(client.responses.create(**asked).output_text) == 12


def test_a_failure_after_a_ping_begins_and_ends_the_stream(own_world: World, asked: dict[str, Any]) -> None:
    world = own_world
    world.call(lambda: world.engine.allow(0))
    with openai_client(world) as client, client.responses.create(**asked, stream=True) as stream:
        world.call(world.engine.die)
        events = list(stream)
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert [event.sequence_number for event in events] == [0, 1, 2]


def test_a_slow_first_token_is_waited_for_with_pings(own_world: World, asked: dict[str, Any]) -> None:
    world = own_world
    world.call(lambda: world.engine.allow(0))
    body = {**asked, "stream": True}
    body |= body.pop("extra_body")
    with httpx.stream("POST", f"{world.url}/v1/responses", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": ping"
        assert next(lines) == ""
        world.call(lambda: world.engine.allow(None))
        rest = [line for line in lines if line and not line.startswith(":")]
    assert rest[0] == "event: response.created"
    assert json.loads(rest[1].removeprefix("data: "))["type"] == "response.created"
    assert rest[-2] == "event: response.incomplete"


def test_a_full_server_refuses_with_a_time_to_wait(own_world: World, asked: dict[str, Any]) -> None:
    world = own_world
    world.call(lambda: world.engine.allow(0))
    with openai_client(world) as client:
        for _ in range(2 + 8):
            client.responses.create(**asked, background=True)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(**asked)
        assert caught.value.status_code == 503
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_deadline_without_a_token_is_a_504(asked: dict[str, Any]) -> None:
    with serving(request_timeout=0.001) as world, openai_client(world) as client:
        for stream in (False, True):
            world.call(lambda: world.engine.allow(0))
            expired = functools.partial(_all_expired, world, len(world.engine.requests))
            waker = once(world, expired, lambda: world.engine.allow(None))
            with pytest.raises(openai.InternalServerError) as caught:
                client.responses.create(**asked, stream=stream)
            waker.join()
            assert caught.value.status_code == 504


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_client_that_leaves_stops_the_work(world: World, stream: bool, turns: int) -> None:
    before = len(world.engine.requests)
    world.call(lambda: world.engine.allow(turns))
    body = json.dumps(
        {"input": "hello", "stream": stream, "max_output_tokens": 400, "ignore_eos": True}
    ).encode()
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        world.wait_until(lambda: len(world.engine.requests) > before and world.engine.budget == 0)
        made = world.engine.turns
    world.wait_until(lambda: world.service.reservations.living == 0)
    world.call(lambda: world.engine.allow(None))
    world.wait_until(lambda: world.is_idle)
    assert world.engine.turns <= made + 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_in_the_middle_keeps_what_was_said(asked: dict[str, Any], stream: bool) -> None:
    with serving(request_timeout=600.0) as world, openai_client(world) as client:
        world.call(lambda: world.engine.allow(4))

        def let_ten_minutes_pass() -> None:
            later = types.SimpleNamespace(now=lambda: time.monotonic() + 600)
            world.engine.engine._scheduler._clock = later
            world.engine.allow(None)

        waker = once(world, lambda: world.engine.turns >= 4, let_ten_minutes_pass)
        if stream:
            with client.responses.create(**asked, stream=True) as events:
                *_, last = events
            assert last.type == "response.failed"
            response = last.response
        else:
            response = client.responses.create(**asked)
        waker.join()
    assert response.status == "failed"
    assert response.error is not None
    assert 0 < len(response.output_text) < 12
