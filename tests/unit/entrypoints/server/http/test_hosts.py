"""Which names a request may call the server by: one that was made to point here is refused."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, ListenSettings
from nanoserve.entrypoints.compose.host_names import host_name, needs_no_name_server
from nanoserve.entrypoints.server.sockets import host_names, listening_sockets
from nanoserve.ports.errors import BadValueError
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

PROBES = ("/livez", "/readyz", "/health")
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    access = AccessSettings(cors_origin=("https://page.example",))
    with app_world(access=access, host_names=("box.example",)) as opened:
        yield opened


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:1", "box.example", "BOX.example:80"])
def test_names_of_its_own_are_answered(world: AppWorld, host: str) -> None:
    with world.client() as client:
        answer = client.post("/v1/chat/completions", json=CHAT, headers={"host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/ui/main.js", "/live", "/metrics", "/v1/models", "/openapi.json", "/nope"]
)
def test_other_names_are_refused_everywhere(world: AppWorld, path: str) -> None:
    with world.client() as client:
        for method in ("GET", "POST", "OPTIONS"):
            with client.stream(method, path, headers={"host": "evil.example:8000"}) as answer:
                assert answer.status_code == 421, method  # `/live` would go on without end
                error = json.loads(answer.read())["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "host_not_allowed")
            assert "'evil.example:8000'" in error["message"]
            assert "--allowed-host" in error["message"]
            assert answer.headers["x-request-id"]


def test_nothing_is_computed_for_another_name(world: AppWorld) -> None:
    before = len(world.engine.requests)
    with world.client() as client:
        client.post("/v1/chat/completions", json=CHAT, headers={"host": "evil.example"})
    assert len(world.engine.requests) == before


def test_the_refusal_has_the_shape_of_the_path(world: AppWorld) -> None:
    with world.client() as client:
        answer = client.post("/v1/messages", json={}, headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["type"]) == (421, "error")
    assert "--allowed-host" in answer.json()["error"]["message"]


def test_a_page_that_may_call_can_read_the_refusal(world: AppWorld) -> None:
    with world.client() as client:
        headers = {"host": "evil.example", "origin": "https://page.example"}
        answer = client.get("/v1/models", headers=headers)
    assert answer.status_code == 421
    assert answer.headers["access-control-allow-origin"] == "https://page.example"


def test_probes_answer_by_any_name(world: AppWorld) -> None:
    with world.client() as client:
        for path in PROBES:
            assert client.get(path, headers={"host": "10.0.0.7:8000"}).status_code == 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("", 200),
        ("host: localhost\r\n", 200),
        ("host:\r\n", 421),
        ("host: localhost\r\nhost: evil.example\r\n", 421),
        ("host: evil.example\r\nhost: localhost\r\n", 421),
        ("host: evil.example\r\nx-forwarded-host: localhost\r\n", 421),
        ("host: \xff\r\n", 421),
    ],
)
def test_no_browser_leaves_the_header_out_or_sends_two(world: AppWorld, lines: str, status: int) -> None:
    with world.connect() as connection:
        connection.sendall(f"GET /v1/models HTTP/1.0\r\n{lines}\r\n".encode("latin-1"))
        answer = connection.makefile("rb").read()
    assert int(answer.split(b" ")[1]) == status
    assert json.loads(answer.partition(b"\r\n\r\n")[2])


def test_without_names_every_name_will_do() -> None:
    with app_world() as world, world.client() as client:
        assert client.get("/v1/models", headers={"host": "any.example"}).status_code == 200


@pytest.mark.parametrize("name", ["http://box", "box:8000", "box/", "*", "a b", "fd00::1"])
def test_what_is_no_name_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(BadValueError, match="takes names of hosts"):
        read_configuration({"allowed_host": (name,)}, {})


def test_allowed_names_are_kept_as_they_are_compared() -> None:
    configuration = read_configuration({}, {"NANOSERVE_ALLOWED_HOST": '["Box.Example.", "[FD00::1]"]'})
    assert configuration.serve.access.allowed_host == ("box.example", "[fd00::1]")


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8000", "localhost.", "page.localhost:80", "127.0.0.1"),
        *("127.0.0.1:8000", "127.255.255.254", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]"),
        *("[::ffff:7f00:1]:8000", "0.0.0.0:8000", "10.1.2.3", "[fd00::1]"),
    ],
)
def test_what_is_where_it_is_whatever_a_name_server_says(host: str) -> None:
    assert needs_no_name_server(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", ":8000", "evil.example", "evil.example:8000", "localhost.evil.example", "evillocalhost"),
        *("127.0.0.1.evil.example", "127.evil.example", "127.1", "256.0.0.1", "[::1%25lo]", "::1"),
        *("[::1", "localhost:8000:1", "localhost:x", "localhost/", "user@localhost"),
        *("localhost evil.example", "localhost,evil.example", "\uff4cocalhost", "\uff1127.0.0.1"),
        *("localhost\n"),
    ],
)
def test_what_may_have_been_pointed_here(host: str) -> None:
    assert not needs_no_name_server(host)


def test_a_host_name_is_compared_without_port_and_case() -> None:
    assert host_name("Box.Example.:8000") == "box.example"
    assert host_name("[FD00::1]:80") == "[fd00::1]"
    assert host_name("http://box") is None


NOT_LOOKED_AT = None


def names(listen: ListenSettings, *allowed: str, has_keys: bool = False) -> frozenset[str] | None:
    with listening_sockets(listen) as (sockets,):
        return host_names(AccessSettings(allowed_host=allowed), listen, sockets, has_keys=has_keys)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_loopback_they_are_unless_there_are_keys(host: str) -> None:
    listen = ListenSettings(host=host, port=0)
    assert names(listen) == frozenset({host})
    assert names(listen, has_keys=True) is NOT_LOOKED_AT


def test_elsewhere_they_are_not(tmp_path: pathlib.Path) -> None:
    assert names(ListenSettings(host="0.0.0.0", port=0)) is NOT_LOOKED_AT
    assert names(ListenSettings(uds=str(tmp_path / "api.sock"))) is NOT_LOOKED_AT


@pytest.mark.parametrize("has_keys", [False, True])
def test_where_names_are_given_they_always_are(tmp_path: pathlib.Path, *, has_keys: bool) -> None:
    for listen in (
        ListenSettings(port=0),
        ListenSettings(host="0.0.0.0", port=0),
        ListenSettings(uds=str(tmp_path / "api.sock")),
    ):
        assert names(listen, "box", "other", has_keys=has_keys) == frozenset({"box", "other", listen.host})
