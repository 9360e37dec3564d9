"""The page over HTTP: who may read what, under which headers, and what is left of it with --no-ui."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, ListenSettings
from nanoserve.entrypoints.page.files import FOLDER, read_page
from nanoserve.entrypoints.server.report import Started
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

KEY = "sk-page"
WAYS_ROUND = (
    "/ui", "/ui/", "/ui/nope.js", "/ui/index.html", "/ui/main.js/", "/ui//main.js", "//ui/main.js", "/ui/../v1/models", "/ui/..%2fv1%2fmodels",
    "/ui/%2e%2e/v1/models", "/ui/..%5cfiles.py", "/ui/../files.py", "/ui/%00main.js", "/ui/main.js%00", "/UI/main.js", "/ui/main.js;x",
    "/ui/engine", "/ui/engine/../../../files.py", "/ui//etc/passwd", "/%2fui/main.js", "/live/../ui/main.js", "/v1/models?/ui/main.js",
)  # fmt: skip
POLICY = (
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
)  # fmt: skip
NO_FILES = ("/UI/main.js", "/ui/engine")


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    with app_world(access=AccessSettings(api_key=(Secret(KEY),))) as opened:
        yield opened


def status_of(world: AppWorld, method: str, target: str) -> int:
    """What a client is told that sends exactly this target."""
    with world.connect() as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return int(connection.recv(64).split(b" ")[1])


def test_the_page_and_its_files_need_no_key_and_are_sent_with_the_policy(world: AppWorld) -> None:
    with world.client() as client:
        for path, file in read_page().items():
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert answer.content == file.body
            headers = answer.headers
            assert headers["content-type"] in {file.content_type, f"{file.content_type}; charset=utf-8"}
            policy = [each.strip() for each in headers["content-security-policy"].split(";")]
            assert sorted(policy) == sorted(POLICY)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cache-control"] == "no-cache"


def test_a_browser_that_has_a_file_is_not_sent_it_again(world: AppWorld) -> None:
    with world.client() as client:
        tag = client.get("/").headers["etag"]
        same = client.get("/", headers={"if-none-match": f'"other", W/{tag}'})
        other = client.get("/", headers={"if-none-match": '"other"'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert other.status_code == 200
    assert tag != read_page()["/ui/main.js"].etag


def test_the_files_can_only_be_read(world: AppWorld) -> None:
    with world.client() as nobody, world.client(KEY) as client:
        head = client.head("/ui/main.js")
        assert (head.status_code, head.content) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert nobody.request(method, "/").status_code == 401
            assert nobody.request(method, "/ui/main.js").status_code == 401
        assert client.post("/", content=b"{}").status_code == 405


@pytest.mark.parametrize("target", WAYS_ROUND)
def test_no_other_path_is_open(world: AppWorld, target: str) -> None:
    assert status_of(world, "GET", target) in {400, 401}


@pytest.mark.parametrize("target", [*WAYS_ROUND[:4], "/ui/../files.py", "/ui/..%2ffiles.py", *NO_FILES])
def test_no_other_path_leads_to_a_file(target: str, open_world: AppWorld) -> None:
    assert status_of(open_world, "GET", target) in {400, 404}


@pytest.fixture(scope="module")
def open_world() -> Iterator[AppWorld]:
    with app_world() as opened:
        yield opened


def test_what_the_page_shows_needs_the_key(world: AppWorld) -> None:
    with world.client() as nobody, world.client(KEY) as client:
        for path in ("/server_info", "/v1/models", "/live?steps=false"):
            assert nobody.get(path).status_code == 401
        assert client.get("/server_info").status_code == 200


def test_the_page_is_there_before_the_model_is() -> None:
    with app_world(is_open=False) as world, world.client() as client:
        assert client.get("/").status_code == 200
        waiting = client.get("/server_info")
    assert waiting.status_code == 503
    assert int(waiting.headers["retry-after"]) > 0


def test_without_the_page_nothing_of_it_is_left() -> None:
    with app_world(ui=False) as world, world.client() as client:
        for path in {*read_page(), "/live"} - {"/"}:
            assert client.get(path).status_code == 404, path
        assert client.get("/v1/models").status_code == 200
    access = AccessSettings(api_key=(Secret(KEY),))
    with app_world(ui=False, access=access) as world, world.client() as client:
        assert client.get(FOLDER + "main.js").status_code == 401


@pytest.mark.parametrize("ui", [True, False])
def test_clients_of_ollama_see_at_the_root_that_a_server_is_there(ui: bool) -> None:
    access = AccessSettings(api_key=(Secret(KEY),))
    with app_world(ui=ui, access=access) as world, world.client() as client:
        head, get = client.head("/"), client.get("/")
        assert client.post("/").status_code == 401
    assert (head.status_code, head.content) == (200, b"")
    assert get.status_code == 200
    assert ui or get.text == "nanoserve is running"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "ab"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]}),
    ],
)
def test_an_answer_says_where_its_time_went_if_it_is_asked(
    open_world: AppWorld, path: str, asked: dict[str, Any]
) -> None:
    body = {"model": "scripted", "max_tokens": 3, "temperature": 0, "n": 2, **asked}
    with open_world.client() as client:
        silent = client.post(path, json=body)
        told = client.post(path, json=body | {"return_timings": True}).json()
        streamed = client.post(path, json=body | {"return_timings": True, "stream": True}).text
    assert "timings" not in silent.text
    for choice in told["choices"]:
        assert list(choice["timings"]) == ["queue", "prefill", "decode"]
        assert all(seconds >= 0 for seconds in choice["timings"].values())
    frames = re.findall(r"^data: (\{.*)$", streamed, re.MULTILINE)
    assert sum('"timings"' in each for each in frames) == 2
    assert all('"finish_reason":"' in each for each in frames if '"timings"' in each)


@pytest.mark.parametrize(
    ("host", "ui", "page"),
    [("127.0.0.1", True, "http://127.0.0.1:{}/"), ("0.0.0.0", True, "http://127.0.0.1:{}/"), ("127.0.0.1", False, None)],
)  # fmt: skip
def test_the_start_report_says_where_the_page_is(
    host: str, ui: bool, page: str | None, open_world: AppWorld
) -> None:
    service = open_world.server.service
    assert service is not None
    with socket.create_server((host, 0)) as bound:
        listen = ListenSettings(ui=ui)
        started = Started(service=service, sockets=[bound], admin=[], phases={}, num_keys=0, listen=listen)
        wanted = None if page is None else page.format(bound.getsockname()[1])
        assert started.page == wanted
        assert "  weights in float32: by hand" in started.lines()
        assert started.record()["products"] == {"float32": "by hand"}
        lines = [each for each in started.lines() if each.startswith("page: ")]
        assert lines == ([] if wanted is None else [f"page: {wanted}"])
