"""What happens to requests that wait, are given up, come too late or lose their engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import httpx
import pytest

from nanoserve.ports.errors import EngineDiedError, StepFailedError
from tests.inside import inside
from tests.unit.entrypoints.scripted_world import scripted_assembly
from tests.unit.entrypoints.server.protocols.openai.frames import DONE, events
from tests.unit.entrypoints.server.protocols.openai.serving import SETTINGS, Serving, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "abc", "max_tokens": 100, "ignore_eos": True}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@pytest.fixture
def server() -> Iterator[Serving]:
    with serving(scripted_assembly(), attrs.evolve(SETTINGS, ping_interval=0.05)) as running:
        yield running
        until(lambda: running.service.reservations.living == 0)
        until(lambda: not running.engine.engine.has_work)
        admission = running.service.reservations
        assert (admission.waiting, admission.waiting_tokens, admission.running_sequences) == (0, 0, 0)


def ask(server: Serving, body: dict[str, Any], path: str = COMPLETIONS) -> socket.socket:
    """Send a request and read nothing."""
    payload = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    sock.sendall(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
    return sock


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_while_it_waits(server: Serving, stream: bool, n: int) -> None:
    server.call(lambda: server.engine.hold(True))
    sock = ask(server, {**LONG, "stream": stream, "n": n})
    until(lambda: server.engine.submitted)
    sock.close()
    until(lambda: server.service.reservations.living == 0)
    server.call(lambda: server.engine.hold(False))
    until(lambda: not server.engine.engine.has_work)
    assert server.engine.turns <= 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_tokens_come(server: Serving, stream: bool) -> None:
    # The scripted model is quick: the engine is held after its third turn.
    original = server.engine.engine.turn
    server.engine.engine.turn = lambda: _held_after(server, 3, original)  # type: ignore[method-assign]
    sock = ask(server, {**LONG, "prompt": ["abc", "de"], "stream": stream})
    until(lambda: server.engine.turns >= 3)
    sock.close()
    until(lambda: server.service.reservations.living == 0)
    server.engine.engine.turn = original  # type: ignore[method-assign]
    turns = server.engine.turns
    server.call(lambda: server.engine.hold(False))
    until(lambda: not server.engine.engine.has_work)
    assert server.engine.turns - turns <= 2


def _held_after(server: Serving, turns: int, turn: Callable[[], Any]) -> Any:
    found = turn()
    if server.engine.turns >= turns:
        server.engine.held = True
    return found


def test_a_stream_says_that_it_is_alive_while_nothing_comes(server: Serving) -> None:
    server.call(lambda: server.engine.hold(True))
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", COMPLETIONS, json={**LONG, "max_tokens": 3, "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        raw = ""
        for text in answer.iter_text():
            raw += text
            if raw.count(": ping\n") == 2:
                server.call(lambda: server.engine.hold(False))
    told = events(raw)
    assert told[:2] == [": ping", ": ping"]
    assert [each for each in told if each != ": ping"][-1] == DONE
    assert len([each for each in told if each.startswith("data: {")]) == 3


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_before_the_first_token(server: Serving, path: str, stream: bool) -> None:
    server.call(lambda: server.engine.hold(True))
    body = {"prompt": "abc", "messages": [{"role": "user", "content": "abc"}], "stream": stream}
    body.pop("messages" if path == COMPLETIONS else "prompt")
    sock = ask(server, body, path)
    until(lambda: server.engine.submitted)
    server.call(lambda: server.engine.fail_all(EngineDiedError("the engine died")))
    head = sock.recv(9).decode()
    # A ping may have committed the headers; then the error is told in the stream.
    answer = head + _all(sock)
    assert "engine_died" in answer
    if not stream:
        assert answer.startswith("HTTP/1.1 500")
    server.call(lambda: server.engine.hold(False))


def _all(sock: socket.socket) -> str:
    """Up to a body's end: the zero chunk of a stream, or the last brace."""
    raw = b""
    while not raw.endswith((b"\r\n0\r\n\r\n", b"}}")):
        received = sock.recv(65536)
        assert received, f"the answer broke off after {raw!r}"
        raw += received
    sock.close()
    return raw.decode()


def test_an_engine_that_dies_after_the_first_token_is_told_in_the_stream(server: Serving) -> None:
    original = server.engine.engine.turn
    server.engine.engine.turn = lambda: _held_after(server, 3, original)  # type: ignore[method-assign]
    sock = ask(server, {**LONG, "stream": True})
    until(lambda: server.engine.turns >= 3 and server.engine.held)
    server.engine.engine.turn = original  # type: ignore[method-assign]
    server.call(lambda: server.engine.fail_all(EngineDiedError("the engine died")))
    answer = _all(sock)
    assert answer.startswith("HTTP/1.1 200")
    body = [line for line in answer.splitlines() if line.startswith("data: ")]
    assert body[-1] == DONE
    error = json.loads(body[-2].removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_died")
    assert '"choices"' in body[0]
    server.call(lambda: server.engine.hold(False))


def test_a_step_that_fails_is_a_500_that_says_nothing_of_its_cause() -> None:
    failing = {step: StepFailedError("secret cause", guilty_rows=(0,)) for step in (1, 2)}
    with (
        serving(scripted_assembly(fail_at=failing)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for stream in (False, True):
            answer = client.post(COMPLETIONS, json={**LONG, "stream": stream})
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "step_failed"
            assert "secret" not in answer.text
        assert client.post(COMPLETIONS, json={**LONG, "max_tokens": 2}).status_code == 200
        assert server.service.reservations.living == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_time_is_over_before_its_first_token(stream: bool) -> None:
    settings = attrs.evolve(SETTINGS, request_timeout=0.05)
    with serving(scripted_assembly(), settings) as server:
        server.call(lambda: server.engine.hold(True))
        sock = ask(server, {**LONG, "stream": stream})
        until(lambda: server.engine.submitted)
        deadline = server.engine.submitted[0].deadline
        assert deadline is not None
        until(lambda: time.monotonic() > deadline)
        server.call(lambda: server.engine.hold(False))
        answer = _all(sock)
        assert answer.startswith("HTTP/1.1 504")
        assert "deadline_exceeded" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_its_time_cuts_short(stream: bool) -> None:
    settings = attrs.evolve(SETTINGS, request_timeout=600.0)
    with serving(scripted_assembly(), settings) as server:
        original = server.engine.engine.turn
        server.engine.engine.turn = lambda: _held_after(server, 3, original)  # type: ignore[method-assign]
        sock = ask(server, {**LONG, "stream": stream})
        until(lambda: server.engine.turns >= 3 and server.engine.held)
        server.engine.engine.turn = original  # type: ignore[method-assign]
        deadline = server.engine.submitted[0].deadline
        assert deadline is not None
        clock = types.SimpleNamespace(now=lambda: deadline + 1)
        server.call(lambda: setattr(inside(server.engine.engine)._scheduler, "_clock", clock))
        server.call(lambda: server.engine.hold(False))
        answer = _all(sock)
        assert answer.startswith("HTTP/1.1 200")
        assert '"finish_reason":"length"' in answer
        assert '"stop_reason":"timeout"' in answer


def test_a_full_server_refuses_at_once_and_forgets_nobody(server: Serving) -> None:
    settings = attrs.evolve(SETTINGS, max_waiting_requests=2)
    with serving(scripted_assembly(max_num_seqs=8), settings) as full:
        facts = full.engine.facts
        assert facts is not None
        full.engine.facts = attrs.evolve(facts, max_num_seqs=1)
        full.call(lambda: full.engine.hold(True))
        socks = [ask(full, {**LONG, "max_tokens": 2}) for _ in range(3)]
        until(lambda: len(full.engine.submitted) == 3)
        with httpx.Client(base_url=full.url, timeout=60) as client:
            for body in ({**LONG}, {**LONG, "stream": True}, {**LONG, "prompt": ["a", "b", "c"]}):
                answer = client.post(COMPLETIONS, json=body)
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "overloaded"
            answer = client.post(COMPLETIONS, json={**LONG, "prompt": ["a"] * 4})
            assert answer.status_code == 400, "more prompts than can ever be let in are not a reason to wait"
        full.call(lambda: full.engine.hold(False))
        assert all('"finish_reason":"length"' in _all(each) for each in socks)
        assert full.service.reservations.living == 0


def test_a_server_that_leaves_finishes_what_it_has_accepted(server: Serving) -> None:
    server.call(lambda: server.engine.hold(True))
    sock = ask(server, {**LONG, "max_tokens": 2})
    until(lambda: server.engine.submitted)
    server.call(server.service.begin_drain)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post(COMPLETIONS, json=LONG)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "draining"
    server.call(lambda: server.engine.hold(False))
    assert '"finish_reason":"length"' in _all(sock)


def test_a_server_that_loads(server: Serving) -> None:
    facts, server.engine.facts = server.engine.facts, None
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path in (COMPLETIONS, "/tokenize"):
            answer = client.post(path, json={"prompt": "a"})
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_loading"
    server.engine.facts = facts


def test_a_storm_of_clients_that_leave(server: Serving) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {**LONG, "stream": number % 2 == 0, "n": 1 + number % 3}
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            await asyncio.wait_for(client.post(COMPLETIONS, json=body), timeout=0.001 * (number % 40))

    async def storm() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await asyncio.gather(*(one(client, number) for number in range(120)))

    asyncio.run(storm())
