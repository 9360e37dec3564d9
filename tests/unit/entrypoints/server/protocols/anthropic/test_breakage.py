"""What clients of `/v1/messages` see when things break, and what the engine sees when clients leave."""

from __future__ import annotations

import functools
import json
import socket
import time
from typing import Any

import anthropic
import httpx
import pytest

from nanoserve.ports.errors import StepFailedError
from tests.unit.entrypoints.server.protocols.anthropic.conftest import anthropic_client
from tests.unit.entrypoints.server.protocols.anthropic.test_refusals import error_type
from tests.unit.entrypoints.server.protocols.protocol_world import World, once, serving


def _asked_since(world: World, before: int) -> bool:
    return len(world.engine.requests) > before


def _expired(world: World, before: int) -> bool:
    deadline = world.engine.requests[-1].deadline if _asked_since(world, before) else None
    return deadline is not None and deadline < time.monotonic()


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_is_a_plain_error(asked: dict[str, Any], stream: bool) -> None:
    with serving() as world, anthropic_client(world) as client:
        world.call(lambda: world.engine.allow(0))
        killer = once(world, functools.partial(_asked_since, world, 0), world.engine.die)
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**asked, stream=stream)
        killer.join()
        assert (caught.value.status_code, error_type(caught.value)) == (500, "api_error")


def test_a_failure_in_the_middle_is_told_in_the_stream(asked: dict[str, Any]) -> None:
    with serving() as world, anthropic_client(world) as client:
        world.call(lambda: world.engine.allow(4))
        with client.messages.create(**asked, stream=True) as stream:
            events = iter(stream)
            while next(events).type != "content_block_delta":
                pass
            world.call(world.engine.die)
            with pytest.raises(anthropic.APIStatusError) as caught:
                list(events)
        assert error_type(caught.value) == "api_error"
        world.wait_until(lambda: world.service.reservations.living == 0)


def test_a_failed_step_is_told(asked: dict[str, Any]) -> None:
    with serving(fail_at={1: StepFailedError("secret")}) as world, anthropic_client(world) as client:
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**asked)
        assert "secret" not in str(caught.value)
        assert client.messages.create(**asked).usage.output_tokens == 12


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_a_504(asked: dict[str, Any], stream: bool) -> None:
    with serving(request_timeout=0.001) as world, anthropic_client(world) as client:
        world.call(lambda: world.engine.allow(0))
        waker = once(world, functools.partial(_expired, world, 0), lambda: world.engine.allow(None))
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**asked, stream=stream)
        waker.join()
        assert (caught.value.status_code, error_type(caught.value)) == (504, "timeout_error")


def test_a_full_server_refuses_with_a_time_to_wait(asked: dict[str, Any]) -> None:
    with serving() as world, anthropic_client(world) as client:
        world.call(world.service.begin_drain)
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**asked)
        assert (caught.value.status_code, error_type(caught.value)) == (503, "overloaded_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_slow_first_token_is_waited_for_with_pings(asked: dict[str, Any]) -> None:
    body = {**asked, "stream": True}
    body |= body.pop("extra_body")
    with serving(ping_interval=0.05) as world:
        world.call(lambda: world.engine.allow(0))
        with httpx.stream("POST", f"{world.url}/v1/messages", json=body) as answer:
            lines = answer.iter_lines()
            assert [next(lines) for _ in range(3)] == ["event: ping", 'data: {"type":"ping"}', ""]
            world.call(lambda: world.engine.allow(None))
            rest = [line for line in lines if line.startswith("event: ") and line != "event: ping"]
    assert rest[0] == "event: message_start"
    assert rest[-1] == "event: message_stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_client_that_leaves_stops_the_work(
    world: World, asked: dict[str, Any], stream: bool, turns: int
) -> None:
    before = len(world.engine.requests)
    world.call(lambda: world.engine.allow(turns))
    asked |= asked.pop("extra_body") | {"stream": stream, "max_tokens": 400}
    body = json.dumps(asked).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        world.wait_until(lambda: _asked_since(world, before) and world.engine.budget == 0)
        made = world.engine.turns
    world.wait_until(lambda: world.service.reservations.living == 0)
    world.call(lambda: world.engine.allow(None))
    world.wait_until(lambda: world.is_idle)
    assert world.engine.turns <= made + 2
