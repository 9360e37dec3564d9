"""Connections that mean harm: too much, too slowly, too long, or nothing at all; their neighbours never notice."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http import limits
from nanoserve.entrypoints.server.http.errors import Problem
from tests.patience import PATIENCE
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    """Waits for minutes, so that a slow machine is never taken for a slow client."""
    bounds = BoundSettings(
        max_header_size=2048, max_body_size=4096, header_timeout=600.0, body_timeout=600.0, send_timeout=600.0
    )
    with app_world(bounds=bounds) as opened:
        yield opened


@pytest.fixture(scope="module")
def hasty() -> Iterator[AppWorld]:
    """Waits for no request that has begun."""
    bounds = BoundSettings(header_timeout=0.3, body_timeout=0.3, keep_alive=600.0)
    with app_world(bounds=bounds) as opened:
        yield opened


def rest_of(connection: socket.socket) -> bytes:
    """Everything until the server hangs up; fails where it does not."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"content-type: application/json" in head
    return int(head.split(b" ")[1]), error["code"]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"nonsense\r\n\r\n", (400, "malformed_request")),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, "malformed_request")),
        (b"\x16\x03\x01\x02\x00\x01\x00", (400, "malformed_request")),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", (400, "malformed_request")),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", (400, "malformed_request")),
        (b"CONNECT x:1 HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", (400, "malformed_request")),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", (400, "malformed_request")),
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", (400, "malformed_request")),
        (HEAD + b"content-length: -1\r\n\r\n", (400, "malformed_request")),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 3000 + b"\r\n\r\n", (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 400 + b"\r\n", (431, "headers_too_large")),
    ],
)
def test_a_bad_connection_gets_the_reason_and_is_closed(
    world: AppWorld, sent: bytes, error: tuple[int, str]
) -> None:
    with world.connect() as connection:
        connection.sendall(sent)
        assert error_of(rest_of(connection)) == error


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nx: ",
        b"",
        b"\r\n",
        HEAD + b"content-length: 50\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_what_does_not_come_is_not_waited_for(hasty: AppWorld, sent: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(sent)
        assert error_of(rest_of(connection)) == (408, "request_timeout")


def drip(connection: socket.socket, drop: bytes) -> bytes:
    """Send drop after drop until the server says something."""
    connection.settimeout(0.01)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        connection.sendall(drop)
        try:
            return connection.recv(4096)
        except TimeoutError:
            continue
    return b""


def test_a_header_that_drips_is_not_waited_for(hasty: AppWorld) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        assert error_of(drip(connection, b"x")) == (408, "request_timeout")


def test_a_header_without_end_is_not_kept(world: AppWorld) -> None:
    with world.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx: ")
        assert error_of(drip(connection, b"x" * 1500)) == (431, "headers_too_large")


def ask(connection: socket.socket) -> bool:
    """One whole request and answer; False where the machine was so slow that the request came too late."""
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        part = connection.recv(4096)
        if not part:
            assert error_of(answer) == (408, "request_timeout")
            return False
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("part", [b"\r\n", b"GET /livez", b"GET /livez HTTP/1.1\r\nhost: "])
def test_a_kept_connection_is_watched_like_a_new_one(hasty: AppWorld, part: bytes) -> None:
    while True:
        with hasty.connect() as connection:
            if ask(connection):
                connection.sendall(part)
                assert error_of(rest_of(connection)) == (408, "request_timeout")
                return


def test_an_idle_connection_is_closed_without_a_word() -> None:
    with app_world(bounds=BoundSettings(keep_alive=0.3)) as world, world.connect() as connection:
        assert ask(connection)
        assert rest_of(connection) == b""


def test_a_body_without_end_is_refused_and_then_cut_off(world: AppWorld) -> None:
    with world.connect() as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 2**26:
                connection.sendall(b"1000\r\n" + b"a" * 4096 + b"\r\n")
                sent += 4096
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert sent < 2**26


def test_trailers_are_not_headers(world: AppWorld) -> None:
    body = b'{"model": "scripted", "prompt": "a", "max_tokens": 1}'
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    with world.connect() as connection:
        connection.sendall(
            HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\nx-request-id: evil\r\n\r\n"
        )
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"evil" not in answer


def test_who_stops_reading_is_left() -> None:
    with app_world(bounds=BoundSettings(send_timeout=0.3)) as world, socket.socket() as connection:
        with world.client() as client:
            size = len(client.get("/openapi.json").content)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = world.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.settimeout(PATIENCE)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 16)
        connection.recv(1)
        world.settle()
        assert len(rest_of(connection)) < 16 * size


def test_requests_are_not_piled_up(world: AppWorld) -> None:
    with world.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        answers = rest_of(connection)
    assert 40 < answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1 ") < 100
    assert answers.count(b"connection: close") == 1
    assert answers.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("behind", [b"", b"GET /li", b"nonsense\r\n\r\n"])
def test_all_that_came_in_one_packet_is_answered_whatever_comes_behind(
    world: AppWorld, behind: bytes
) -> None:
    with world.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 40 + behind)
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection).count(b"HTTP/1.1 200") == 40


def test_short_headers_may_be_many() -> None:
    with app_world() as world, world.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 3000 + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def whole_request(**fields: Any) -> bytes:
    body = json.dumps({"prompt": "a", "ignore_eos": True, **fields}).encode()
    return HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_sent_everything_gets_its_answer(world: AppWorld, stream: bool) -> None:
    world.call(lambda: world.engine.allow(0))
    with world.connect() as connection:
        connection.sendall(whole_request(max_tokens=4, stream=stream))
        connection.shutdown(socket.SHUT_WR)
        world.wait_until(lambda: world.app.living)
        world.call(lambda: world.engine.allow(None))
        interim, _, answer = rest_of(connection).partition(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue"
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    assert b'"finish_reason":"length"' in answer


@pytest.mark.parametrize(
    "behind", [b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 70, HEAD + b"content-length: 9\r\n\r\n"]
)
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_connection_is_gone(
    world: AppWorld, stream: bool, has_begun: bool, behind: bytes
) -> None:
    """Also one that has asked for more by then: no more is read before the answer ends."""
    world.call(lambda: world.engine.allow(3 if has_begun else 0))
    with world.connect() as connection:
        connection.sendall(whole_request(max_tokens=400, stream=stream) + behind[:60])
        connection.sendall(behind[60:])
        if has_begun and stream:
            assert connection.recv(1)
        world.wait_until(lambda: world.app.living and not world.engine.budget)
    before = world.engine.turns
    if has_begun and stream:  # the next token that is sent finds nobody
        world.call(lambda: world.engine.allow(2))
    world.wait_until(lambda: not world.app.living)
    world.call(lambda: world.engine.allow(None))
    world.wait_until(lambda: world.is_idle)
    assert world.engine.turns <= before + 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_reads_a_plain_body_to_its_end(world: AppWorld, stream: bool) -> None:
    """It knows no interim answers: what it says of one is not heard."""
    request = whole_request(max_tokens=4, stream=stream)
    with world.connect() as connection:
        connection.sendall(request.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nexpect: 100-continue\r\n"))
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert (b"chunked" in head, b"connection: close" in head) == (False, True)
    assert body.startswith(b"data: {" if stream else b"{")
    assert body.endswith(b"data: [DONE]\n\n" if stream else b"}")


@pytest.mark.parametrize("path", [b"/metrics", b"/v1/models", b"/", b"/livez", b"/live"])
def test_what_can_be_got_has_a_head(world: AppWorld, path: bytes) -> None:
    """That of an endless stream, too; the connection is kept."""
    with world.connect() as connection:
        connection.sendall(b"HEAD %s HTTP/1.1\r\nhost: x\r\n\r\n" % path)
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, after = rest_of(connection).split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200")
    assert after.startswith(b"HTTP/1.1 200")
    assert after.endswith(b'{"status":"ok"}')


def test_pipelined_requests_are_answered_in_turn(world: AppWorld) -> None:
    with world.connect() as connection:
        connection.sendall(
            b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /nope HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answers = rest_of(connection)
    assert answers.startswith(b"HTTP/1.1 200")
    assert (answers.count(b"HTTP/1.1 "), answers.count(b"HTTP/1.1 404")) == (2, 1)


@pytest.mark.parametrize("cut", [0, 1, 40, -1, None])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_changes_nothing(
    world: AppWorld, is_chunked: bool, cut: int | None
) -> None:
    """A JDK client sends `upgrade: h2c` with every request; its headers and body come in any packets."""
    offer = (
        b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    )
    body = json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True}).encode()
    sized, piece = f"content-length: {len(body)}\r\n\r\n".encode(), f"{len(body):x}\r\n".encode()
    chunked = b"transfer-encoding: chunked\r\n\r\n" + piece
    asked = HEAD + offer + (chunked + body + b"\r\n0\r\n\r\n" if is_chunked else sized + body)
    sent = (
        asked + asked + b"GET /livez HTTP/1.1\r\nhost: x\r\n" + offer.replace(b"h2c", b"websocket") + b"\r\n"
    )
    middle = len(HEAD + offer) if cut == 0 else cut
    with world.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(sent[:middle])
        connection.sendall(sent[len(sent[:middle]) :])
        connection.shutdown(socket.SHUT_WR)
        answers = rest_of(connection)
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1 2") == 3
    assert answers.count(b'"finish_reason":"length"') == 2
    assert answers.endswith(b'{"status":"ok"}')


def test_the_server_hides_what_it_runs_on(world: AppWorld) -> None:
    with world.client() as client:
        assert "server" not in client.get("/livez").headers


def test_connections_are_bounded() -> None:
    with app_world(bounds=BoundSettings(max_connections=2)) as world:
        held = [world.connect() for _ in range(2)]
        assert all(map(ask, held))
        with world.connect() as refused:
            answer = rest_of(refused)
        assert error_of(answer) == (503, "too_many_connections")
        assert b"retry-after: 1" in answer
        assert world.call(lambda: world.server.measurements.tallies.rejected["too_many_connections"]) == 1
        for each in held:
            assert ask(each)
            each.close()


def test_every_refusal_has_its_counter() -> None:
    codes = {each.code for each in vars(limits).values() if isinstance(each, Problem)}
    assert codes == set(limits.REFUSALS)


async def test_requests_that_come_together_begin_one_after_the_other() -> None:
    """Each has done what takes two turns of the loop before the next one begins, and other callbacks get turns between them; who left is passed over."""
    seen: list[str] = []

    async def serve(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(f"{scope['name']} begins")
        await asyncio.sleep(0)
        seen.append(f"{scope['name']} is handed over")

    app: Any = limits.Pacing(serve)
    tasks = [asyncio.create_task(app({"name": name}, None, None)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[2].cancel()
    for _ in range(6):
        seen.append("|")
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    await app({"name": "late"}, None, None)
    assert [each for each in seen if each != "|"] == [
        f"{name} {what}" for name in ("a", "b", "d", "late") for what in ("begins", "is handed over")
    ]
    turns = "".join(each[0] for each in seen).split("|")
    assert max(len(turn) for turn in turns) <= 2
    assert sum(bool(turn) for turn in turns) >= 4
