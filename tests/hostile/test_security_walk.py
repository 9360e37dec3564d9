"""Where a key counts, and where keys and prompts must not show: headers, command lines, logs."""

from __future__ import annotations

import json

import psutil

from tests.hostile.conftest import KEY
from tests.hostile.connections import JSON, WHOLE, sized
from tests.hostile.wire import Answer, Reader, connect
from tests.process.server_process import ServerProcess


def ask(server: ServerProcess, method: str, path: str, headers: bytes = b"", body: bytes = b"") -> Answer:
    with connect(server.url) as connection:
        line = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode("latin-1")
        connection.sendall(line + headers + sized(body) + b"\r\n" + body)
        answer = Reader(connection).answer(method)
    assert answer is not None
    return answer


def test_a_key_is_read_from_headers_only(server: ServerProcess) -> None:
    for path in (f"/v1/models?api_key={KEY}", f"/v1/models?key={KEY}", f"/v1/models?access_token={KEY}"):
        assert ask(server, "GET", path).status == 401
    cookie = f"cookie: api_key={KEY}\r\n".encode()
    assert ask(server, "GET", "/v1/models", cookie).status == 401
    assert (
        ask(server, "POST", "/v1/completions", JSON, WHOLE[:-1] + f', "api_key": "{KEY}"}}'.encode()).status
        == 401
    )


def test_keys_are_in_no_command_line_of_the_engine(server: ServerProcess) -> None:
    for child in psutil.Process(server.process.pid).children(recursive=True):
        assert KEY not in " ".join(child.cmdline())
        assert not [value for value in child.environ().values() if KEY in value]


def test_neither_keys_nor_prompts_are_logged(server: ServerProcess) -> None:
    canary = "a prompt that no log may hold"
    own = f"authorization: Bearer {KEY}\r\n".encode() + JSON
    for body in (
        {"prompt": canary, "max_tokens": 1},
        {"prompt": canary, "max_tokens": -1},
        {"prompt": [canary, 1]},
        {"prompt": canary, "max_tokens": 1, "unheard_of": canary, "user": canary},
        {"prompt": canary * 400, "max_tokens": 1},
    ):
        assert ask(server, "POST", "/v1/completions", own, json.dumps(body).encode()).status in {200, 400}
    evil = ask(server, "GET", "/v1/%1b%5b31m%0d%0aevil", b"x-request-id: a\x1bb\r\n" + own)
    assert evil.status in {400, 404}
    said = server.out.read_text() + server.err.read_text()
    assert KEY not in said
    assert canary not in said
    assert said.replace("\n", "").isprintable()
    assert "Traceback" not in said
