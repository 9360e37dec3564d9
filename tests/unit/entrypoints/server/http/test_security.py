"""The gate: whatever the route table holds, nothing but the probes opens without a key; and OPTIONS says what a route takes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.server import protocols
from nanoserve.entrypoints.server.app import make_metrics_app
from nanoserve.entrypoints.server.watch import about, health, live, metrics, openapi, page
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

ROUTES = [*health.ROUTES, *metrics.ROUTES, *about.ROUTES, *live.ROUTES, *openapi.ROUTES, *protocols.ROUTES]
WALK = sorted(
    {
        (method, path)
        for route in ROUTES
        for path in route.paths
        for method in (*route.http_methods, "OPTIONS")
    }
)
PROBES = {"/livez", "/readyz", "/health"}
WAYS_ROUND = (
    "/ui", "/nope", "/v1", "//livez", "/livez/", "/livez/..", "/v1/models/../../livez", "/%2e/livez", "/livez/../v1/models",
    "/livez/../../v1/models", "/v1/models?/livez", "/v1/models#/livez", "/v1/models;/livez", "/v1/models/livez", "/LIVEZ",
    "/livez%2f..%2fv1%2fmodels", "/livez/%2e%2e/v1/models", "/livez%00/v1/models", "http://x/v1/models", "http://x/livez/../v1/models",
    "/%6civez/../v1/models", "/v1/%6dodels", "/v1/models/", "/livez\\..\\v1\\models", "/admin", "/debug", "/openapi.json%00", "/.git/config",
)  # fmt: skip
NOT_KEYS = (
    "Bearer", "Bearer ", "Bearer x", "Bearer sk-on", "Bearer sk-onex", "Bearer SK-ONE", "Bearer sk-one sk-one", "Basic sk-one",
    "Bearer,sk-one", "Bearer *", "Bearer null", "Bearer undefined", "Bearer ' OR 1=1 --", "Bearer " + "a" * 8000, "Bearer sk-one\x00",
    "Bearer %73k-one", "Bearer \xffsk-one",
)  # fmt: skip
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    access = AccessSettings(
        api_key=(Secret("sk-one"), Secret("sk-two")), cors_origin=("https://page.example",)
    )
    with app_world(access=access) as opened:
        yield opened


def test_the_walk_sees_every_protocol() -> None:
    paths = {path for _, path in WALK}
    assert PROBES | {"/metrics", "/openapi.json", "/server_info", "/v1/chat/completions"} <= paths
    assert {"/v1/completions", "/v1/models", "/v1/responses", "/v1/messages", "/tokenize"} <= paths


def test_every_route_but_the_probes_answers_401_without_a_key(world: AppWorld) -> None:
    with world.client() as client:
        for method, path in WALK:
            answer = client.request(method, re.sub(r"{[^}]*}", "x", path))
            if path in PROBES:
                assert answer.status_code in {200, 204}, path
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["x-request-id"]
            if method != "HEAD":
                error = answer.json()["error"]
                assert error if path.startswith("/api/") else error["message"]


@pytest.mark.parametrize("path", WAYS_ROUND)
def test_no_form_of_a_path_goes_around_the_keys(world: AppWorld, path: str) -> None:
    with world.connect() as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        assert connection.recv(4096).split(b" ")[1] in {b"400", b"401"}


@pytest.mark.parametrize("text", NOT_KEYS)
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_what_is_like_a_key_is_none(world: AppWorld, header: str, text: str) -> None:
    with world.connect() as connection:
        lines = f"{header}: {text}\r\nhost: x\r\nconnection: close\r\n"
        connection.sendall(f"GET /v1/models HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        answer = connection.recv(4096)
    assert answer.split(b" ")[1] in {b"400", b"401"}
    assert b"sk-" not in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer sk-one"}, 200),
        ({"authorization": "bearer  sk-two"}, 200),
        ({"x-api-key": "sk-two"}, 200),
        ({"authorization": ""}, 401),
        ({"x-api-key": ""}, 401),
        ({"authorization": "Bearer sk-bad", "x-api-key": "sk-one"}, 401),
        ({"authorization": b"Bearer \xff\xfe"}, 401),
    ],
)
def test_only_a_key_is_a_key(world: AppWorld, headers: dict[str, str], status: int) -> None:
    with world.client() as client:
        answer = client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert "sk-" not in answer.text


def test_a_wrong_key_on_anthropics_routes_has_anthropics_shape(world: AppWorld) -> None:
    with world.client("wrong") as client:
        answer = client.post("/v1/messages", json={})
    assert answer.status_code == 401
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "authentication_error"
    with world.client("wrong") as client:
        answer = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert answer.json()["error"]["type"] == "authentication_error"


def test_what_the_router_refuses_has_the_shape_of_the_path(world: AppWorld) -> None:
    with world.client("sk-one") as client:
        wrong_method, unknown = client.get("/v1/messages"), client.get("/v1/messages/nope")
    assert (wrong_method.status_code, unknown.status_code) == (405, 404)
    assert {wrong_method.json()["type"], unknown.json()["type"]} == {"error"}


def test_keys_keep_their_prefixes_apart(world: AppWorld) -> None:
    salts = []
    for key in ("sk-one", "sk-two", "sk-one"):
        with world.client(key) as client:
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        salts.append(world.engine.requests[-1].cache_salt)
    assert salts[0] == salts[2] != salts[1]
    assert all(salts)


def test_preflight_needs_no_key_and_only_named_origins_pass(world: AppWorld) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with world.client() as client:
        allowed = client.options("/v1/models", headers={"origin": "https://page.example", **asked})
        refused = client.options("/v1/models", headers={"origin": "https://evil.example", **asked})
        unauthorized = client.get("/v1/models", headers={"origin": "https://page.example"})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert refused.status_code == 401
    assert "access-control-allow-origin" not in refused.headers
    assert unauthorized.status_code == 401
    assert unauthorized.headers["access-control-allow-origin"] == "https://page.example"
    exposed = unauthorized.headers["access-control-expose-headers"]
    assert set(exposed.split(", ")) == {"x-request-id", "request-id", "retry-after"}


def test_without_keys_every_client_is_let_in_and_cors_is_off() -> None:
    with app_world() as open_world, open_world.client() as client:
        answer = client.get("/v1/models", headers={"origin": "https://page.example"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_key_over_its_rate_gets_retry_after() -> None:
    access = AccessSettings(api_key=(Secret("sk-one"), Secret("sk-two")), rate_limit=2.0)
    with app_world(access=access) as world, world.client("sk-one") as one, world.client("sk-two") as two:
        answers = [one.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 429]
        assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30
        assert two.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert one.get("/v1/models").status_code == 200


def test_the_admin_route_is_on_its_own_application_and_needs_a_key() -> None:
    access = AccessSettings(api_key=(Secret("sk-one"),))
    with app_world(access=access, administers=True) as world, world.client() as nobody:
        assert nobody.post("/reset_prefix_cache").status_code == 401
        with world.client("sk-one") as one:
            assert one.post("/reset_prefix_cache").json() == {"status": "ok", "success": True}
            assert one.get("/v1/models").status_code == 404
    assert "/reset_prefix_cache" not in {path for _, path in WALK}


METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")


def test_every_route_names_all_its_methods_and_takes_no_other() -> None:
    methods: defaultdict[str, set[str]] = defaultdict(lambda: {"OPTIONS"})
    for route in (*ROUTES, *page.ROUTES):
        for path in route.paths:
            methods[path] |= route.http_methods
    assert {"DELETE", "GET"} < methods["/v1/responses/{response_id:str}"]
    with app_world() as world, world.client() as client:
        for path, taken in methods.items():
            target = re.sub(r"{[^}]*}", "x", path)
            options = client.options(target)
            assert (options.status_code, options.content) == (204, b""), path
            assert options.headers["allow"] == ", ".join(sorted(taken)), path
            for method in METHODS:
                if method in taken or (method == "HEAD" and "GET" in taken):  # the protocol asks for GET
                    continue
                refused = client.request(method, target)
                assert (method, refused.status_code) == (method, 405), path
                assert set(refused.headers["allow"].split(", ")) == taken, path


async def test_the_port_for_scrapers_answers_metrics_without_a_key_and_nothing_else(world: AppWorld) -> None:
    transport = httpx.ASGITransport(cast("Any", make_metrics_app(world.server)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path, status in (("/metrics", 200), ("/v1/models", 401), ("/server_info", 401)):
            assert (await client.get(path)).status_code == status
