"""Walks over the whole surface of a server: who is let in, what listens, what is said, and what is written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import psutil
import pytest

from nanoserve.entrypoints.page.files import read_page
from nanoserve.entrypoints.server.watch import about
from tests.hostile.conftest import KEY
from tests.hostile.connections import JSON, METHODS, PATHS, WHOLE, sized
from tests.hostile.shapes import answer_flaw
from tests.hostile.wire import Answer, Reader, connect
from tests.process.server_process import ServerProcess

PROBES = {"/livez", "/readyz", "/health"}
WAYS_ROUND = (
    "//livez", "/livez/../v1/models", "/livez/../../v1/models", "/v1/models?/livez", "/v1/models#/livez", "/v1/models;/livez",
    "/v1/models/livez", "/livez%2f..%2fv1%2fmodels", "/livez/%2e%2e/v1/models", "/livez%00/v1/models", "/LIVEZ", "/livez/",
    "http://x/v1/models", "http://x/livez/../v1/models", "/%6civez/../v1/models", "/v1/%6dodels", "/v1/models/", "/livez\\..\\v1\\models",
)  # fmt: skip
NOT_KEYS = (
    "Bearer", "Bearer ", "Bearer x", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Bearer {KEY.lower()}", f"Bearer {KEY} {KEY}", KEY,
    f"Basic {KEY}", f"Bearer,{KEY}", "Bearer *", "Bearer null", "Bearer undefined", "Bearer ' OR 1=1 --", "Bearer " + "a" * 8000,
    f"Bearer {KEY}\x00", f"Bearer %73{KEY[1:]}", f"Bearer \xff{KEY}",
)  # fmt: skip


def ask(server: ServerProcess, method: str, path: str, headers: bytes = b"", body: bytes = b"") -> Answer:
    with connect(server.url) as connection:
        line = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode("latin-1")
        connection.sendall(line + headers + sized(body) + b"\r\n" + body)
        answer = Reader(connection).answer(method)
    assert answer is not None
    return answer


def routes(server: ServerProcess) -> Iterator[tuple[str, str]]:
    """Every method of every route that the server admits to, and of the two that describe them."""
    with server.client(KEY) as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert len(paths) > 15
    for path in (*paths, "/openapi.json", "/docs"):
        for method in METHODS:
            yield method, re.sub(r"{[^}]*}", "x", path)


def test_every_route_but_the_probes_is_closed_to_those_without_a_key(server: ServerProcess) -> None:
    for method, path in routes(server):
        answer = ask(server, method, path, JSON, b"{}")
        if path in PROBES:
            assert answer.status in {200, 204, 405}, (method, path)
            continue
        assert answer.status == 401, (method, path, answer)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        flaw = answer_flaw(path, answer.status, answer.headers, answer.body, {401})
        assert method == "HEAD" or flaw is None, (method, path, flaw)


@pytest.mark.parametrize("path", [*WAYS_ROUND, *(each for each in PATHS if not each.startswith("http"))])
def test_no_spelling_of_a_path_is_a_way_round(server: ServerProcess, path: str) -> None:
    answer = ask(server, "GET", path)
    if path.partition("?")[0] == "/":
        assert answer.body == read_page().files["/"].body
        return
    assert answer.status in {400, 401}, answer
    assert b'"data"' not in answer.body


@pytest.mark.parametrize(
    ("header", "text"),
    [("authorization", each) for each in NOT_KEYS]
    + [("x-api-key", each) for each in NOT_KEYS if each != KEY],
)
def test_what_is_like_a_key_is_none(server: ServerProcess, header: str, text: str) -> None:
    answer = ask(server, "GET", "/v1/models", f"{header}: {text}\r\n".encode("latin-1"))
    assert answer.status in {400, 401}, answer
    assert KEY.encode() not in answer.body


def test_a_key_belongs_into_a_header_only(server: ServerProcess) -> None:
    for path in (f"/v1/models?api_key={KEY}", f"/v1/models?key={KEY}", f"/v1/models?access_token={KEY}"):
        assert ask(server, "GET", path).status == 401
    cookie = f"cookie: api_key={KEY}\r\n".encode()
    assert ask(server, "GET", "/v1/models", cookie).status == 401
    assert (
        ask(server, "POST", "/v1/completions", JSON, WHOLE[:-1] + f', "api_key": "{KEY}"}}'.encode()).status
        == 401
    )


def test_administration_is_nowhere(server: ServerProcess) -> None:
    own = f"authorization: Bearer {KEY}\r\n".encode()
    for route in about.ADMIN_ROUTES:
        for path in route.paths:
            for prefix in ("", "/v1", "/admin"):
                assert ask(server, "POST", prefix + path, own).status == 404


def test_pages_of_other_origins_are_told_nothing(server: ServerProcess) -> None:
    own = f"authorization: Bearer {KEY}\r\n".encode()
    for origin in (b"https://evil.example", b"null", b"http://127.0.0.1"):
        asked = b"origin: " + origin + b"\r\naccess-control-request-method: POST\r\n"
        for method in ("OPTIONS", "GET"):
            for headers in (asked, own + asked):
                answer = ask(server, method, "/v1/models", headers)
                assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_keys_are_in_no_command_line_of_the_engine(server: ServerProcess) -> None:
    for child in psutil.Process(server.process.pid).children(recursive=True):
        assert KEY not in " ".join(child.cmdline())
        assert not [value for value in child.environ().values() if KEY in value]


def test_neither_keys_nor_prompts_are_written_down(server: ServerProcess) -> None:
    canary = "a prompt that nobody should read"
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
