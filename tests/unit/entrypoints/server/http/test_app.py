"""The application as clients see it: errors of every kind in one shape, probes, pages, ids, and the log."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server import protocols
from nanoserve.entrypoints.server.watch.openapi import ApiDocument
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineState
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

NONE: dict[str, str] = {}
JSON = {"content-type": "application/json"}
COMPLETION: dict[str, Any] = {"model": "scripted", "prompt": "ab", "max_tokens": 2}


@pytest.fixture(scope="module")
def world() -> Iterator[AppWorld]:
    with app_world(bounds=BoundSettings(max_body_size=4096, max_json_depth=8)) as opened:
        yield opened


GZIP = JSON | {"content-encoding": "gzip"}
TEXT = {"content-type": "text/plain"}
DEEP = b'{"prompt":' + b"[" * 9 + b"]" * 9 + b"}"
LONG = b'{"prompt": "' + b"a" * 5000 + b'"}'
ITEMS = "/v1/responses/x/input_items?limit=many"


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (("GET", "/nope", NONE, b""), 404, "not_found"),
        (("POST", "/v1/audio/speech", JSON, b"{}"), 404, "route_not_served"),
        (("POST", "/v1/responses/compact", JSON, b"{}"), 404, "route_not_served"),
        (("GET", "/v1/files/file-1", NONE, b""), 404, "route_not_served"),
        (("GET", "/v1/filesystem", NONE, b""), 404, "not_found"),
        (("PUT", "/v1/completions", NONE, b""), 405, "method_not_allowed"),
        (("TRACE", "/v1/completions", NONE, b""), 405, "method_not_allowed"),
        (("POST", "/v1/completions", NONE, b"{}"), 415, "unsupported_media_type"),
        (("POST", "/v1/completions", TEXT, b"{}"), 415, "unsupported_media_type"),
        (("POST", "/v1/completions", GZIP, b"{}"), 415, "unsupported_media_type"),
        (("POST", "/v1/completions", JSON, b""), 400, "invalid_json"),
        (("POST", "/v1/completions", JSON, b"{]"), 400, "invalid_json"),
        (("POST", "/v1/completions", JSON, DEEP), 400, "invalid_json"),
        (("POST", "/v1/completions", JSON, b'{"prompt": "a", "top_p": 3}'), 400, "invalid_value"),
        (("POST", "/v1/completions", JSON, b'{"prompt": "a", "model": "x"}'), 404, "model_not_found"),
        (("POST", "/v1/completions", JSON, LONG), 413, "body_too_large"),
        (("GET", ITEMS, NONE, b""), 400, "bad_request"),
    ],
)
def test_every_error_has_one_shape(
    world: AppWorld, asked: tuple[str, str, dict[str, str], bytes], status: int, code: str
) -> None:
    method, path, headers, body = asked
    with world.client() as client:
        answer = client.request(method, path, headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code
    if status == 405:
        assert "POST" in answer.headers["allow"]


def test_a_chunked_body_is_measured_too(world: AppWorld) -> None:
    with world.client() as client:
        answer = client.post(
            "/v1/completions", headers=JSON, content=iter([b'{"prompt": "', b"a" * 5000, b'"}'])
        )
    assert answer.status_code == 413


def test_a_bug_is_a_500_that_says_nothing(world: AppWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(world.server.metrics.__class__, "page", break_down)
    with world.client() as client:
        answer = client.get("/metrics")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["code"] == "internal_error"


def test_ids_of_requests_come_back_unless_they_could_do_harm(world: AppWorld) -> None:
    with world.client() as client:
        echoed = client.get("/version", headers={"x-request-id": "abc-1"}).headers["x-request-id"]
        made = client.get("/version", headers={"x-request-id": "a b" * 100}).headers["x-request-id"]
        refused = client.get("/nope", headers={"x-request-id": "abc-2"}).headers["request-id"]
    assert (echoed, refused, len(made)) == ("abc-1", "abc-2", 32)


def test_every_request_ends_with_one_line_that_holds_no_prompt(world: AppWorld) -> None:
    world.settle()
    body = COMPLETION | {"prompt": "abba", "stream": True, "ignore_eos": True}
    with structlog.testing.capture_logs() as logs, world.client() as client:
        answer = client.post("/v1/completions", json=body)
        world.settle()
        client.get("/nope%1b[2J")
        world.settle()
    lines = [each for each in logs if each["event"] == "request"]
    assert answer.headers["x-engine-request"] == lines[0]["engine_id"]
    assert [(each["path"], each["status"], each["client"]) for each in lines] == [
        ("/v1/completions", 200, "anonymous"),
        ("/nope\x1b[2J", 404, "anonymous"),
    ]
    first = lines[0]
    assert (first["prompt_tokens"], first["generated_tokens"], first["finish"]) == (4, 2, "length")
    assert 0 <= first["queue"] <= first["first_token"] <= first["seconds"]
    assert first["bytes"] > 0
    assert "abba" not in json.dumps(logs, default=str)


@pytest.mark.parametrize("end", ["left", "died"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_line_of_an_answer_that_breaks_counts_what_was_generated(
    world: AppWorld, end: str, n: int
) -> None:
    world.settle()
    world.call(lambda: world.engine.allow(4))
    body = COMPLETION | {"max_tokens": 400, "stream": True, "ignore_eos": True, "n": n}
    with structlog.testing.capture_logs() as logs, world.client() as client:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            events = (line for line in answer.iter_lines() if line)
            seen = [next(events) for _ in range(3)]
            world.wait_until(lambda: world.engine.budget == 0)
            if end == "died":
                world.call(world.engine.die)
                seen += events
        most = 4 * n
        if end == "left":  # it is noticed when more is written
            most = 400 * n - 1
            world.call(lambda: world.engine.allow(None))
        world.settle()
    world.call(lambda: world.engine.allow(None))
    (line,) = [each for each in logs if each["event"] == "request"]
    assert len(seen) >= 3
    assert 3 <= line["generated_tokens"] <= most
    assert line["finish"] == ("abort" if end == "left" else "error")


def test_the_line_of_a_whole_answer_that_breaks_says_nothing_of_what_it_does_not_know(
    world: AppWorld,
) -> None:
    world.settle()
    world.call(lambda: world.engine.allow(4))
    with structlog.testing.capture_logs() as logs, world.client() as client:
        asking = threading.Thread(
            target=client.post,
            args=("/v1/completions",),
            kwargs={"json": COMPLETION | {"max_tokens": 400, "ignore_eos": True}},
        )
        asking.start()
        world.wait_until(lambda: world.engine.budget == 0)
        world.call(world.engine.die)
        asking.join()
        world.settle()
    world.call(lambda: world.engine.allow(None))
    (line,) = [each for each in logs if each["event"] == "request"]
    assert (line["status"], line["finish"]) == (500, "error")
    assert "generated_tokens" not in line


def test_probes_are_not_logged_among_requests(world: AppWorld) -> None:
    world.settle()
    with structlog.testing.capture_logs() as logs, world.client() as client:
        client.get("/livez")
        world.settle()
    assert [each["log_level"] for each in logs if each["event"] == "request"] == ["debug"]


def test_about(world: AppWorld) -> None:
    with world.client() as client:
        info = client.get("/server_info").json()
        assert client.get("/version").json() == {"version": info["version"]}
        model = client.get("/model_info").json()
        assert client.get("/get_server_info").json()["models"] == info["models"]
        assert client.get("/get_model_info").json() == model
    assert info["models"] == ["scripted"]
    assert (info["default_sampling"], info["default_sampling_origin"]) == ({"temperature": 0.5}, "a file")
    assert info["bounds"]["max_body_size"] == 4096
    assert "pid" not in info["engine"]
    assert (info["served_model_name"], model["served_model_name"], model["is_generation"]) == (
        *["scripted"] * 2,
        True,
    )
    assert info["model_path"] == model["model_path"] == model["tokenizer_path"] == info["engine"]["model"]
    assert info["max_running_requests"] == info["engine"]["max_num_seqs"]


def test_while_the_model_loads_probes_answer_and_requests_are_put_off() -> None:
    with app_world(is_open=False) as world, world.client() as client:
        world.engine.status = EngineStatus.STARTING
        assert [client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        answer = client.post("/v1/completions", json=COMPLETION)
        assert client.get("/metrics").status_code == 200
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "engine_loading"


@pytest.mark.parametrize(
    ("status", "probes"),
    [
        (EngineStatus.READY, [200, 200, 200]),
        (EngineStatus.STALLED, [200, 503, 503]),
        (EngineStatus.RESTARTING, [200, 503, 503]),
        (EngineStatus.FAILED, [503, 503, 503]),
    ],
)
def test_probes_tell_what_the_engine_does(world: AppWorld, status: EngineStatus, probes: list[int]) -> None:
    world.engine.status = status
    try:
        with world.client() as client:
            answers = [client.get(path) for path in ("/livez", "/readyz", "/health")]
            heads = [client.head(path) for path in ("/livez", "/readyz", "/health")]
    finally:
        world.engine.status = EngineStatus.READY
    assert [each.status_code for each in answers] == probes
    assert [(each.status_code, each.content) for each in heads] == [(code, b"") for code in probes]
    assert all(each.json()["reason"] for each in answers if each.status_code == 503)


def test_work_without_steps_is_trouble_and_a_long_rest_is_not() -> None:
    with app_world(bounds=BoundSettings(stall_timeout=30.0)) as world, world.client() as client:
        health, clock = world.server.health, world.server.clock

        def set_state(running: int, since_step: float) -> None:
            at = clock.now()
            world.engine.state = EngineState(at=at, last_step=at - since_step, running=running)

        set_state(0, 1000)
        assert client.get("/health").status_code == 200
        set_state(1, 1000)
        assert client.get("/health").status_code == 200, "work has only just come"
        health._busy_since = clock.now() - 31
        assert client.get("/health").json()["reason"] == "the engine has work and makes no step"
        set_state(1, 1)
        assert client.get("/health").status_code == 200
        world.engine.last_report = clock.now() - 31
        assert client.get("/health").json()["reason"] == "the engine gives no sign of life"


def test_readyz_closes_at_once_when_the_server_leaves() -> None:
    with app_world() as world, world.client() as client:
        world.server.health.is_draining = True
        assert [client.get(path).status_code for path in ("/livez", "/readyz", "/health")] == [200, 503, 200]


@pytest.fixture(scope="module")
def document(world: AppWorld) -> dict[str, Any]:
    with world.client() as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_document_shows_every_route_its_body_and_its_errors(document: dict[str, Any]) -> None:
    declared = {
        path.replace(":str", "").replace(":path", "") for route in protocols.ROUTES for path in route.paths
    }
    assert declared <= set(document["paths"])
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "401", "404", "413", "415", "429", "500", "503"} <= set(chat["responses"])
    assert chat["security"]
    assert "security" not in document["paths"]["/livez"]["get"]
    live = document["paths"]["/live"]["get"]
    assert ([each["name"] for each in live["parameters"]], bool(live["security"])) == (["steps"], True)
    assert "text/event-stream" in live["responses"]["200"]["content"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert "messages" in document["components"]["schemas"][body]["properties"]
    error = document["paths"]["/v1/messages"]["post"]["responses"]["401"]["content"]["application/json"]
    assert error != chat["responses"]["401"]["content"]["application/json"]


def test_every_reference_in_the_document_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    names = {each.partition('"')[0] for each in text.split('"#/components/schemas/')[1:]}
    assert names
    assert names <= set(document["components"]["schemas"])


def test_the_document_is_made_once(world: AppWorld, monkeypatch: pytest.MonkeyPatch, document: Any) -> None:
    monkeypatch.setattr(ApiDocument, "_make", lambda _: pytest.fail("made again"))
    with world.client() as client:
        assert client.get("/openapi.json").json() == document
