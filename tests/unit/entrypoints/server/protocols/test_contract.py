"""What every protocol keeps: one answer, however it is asked for, and no trouble that outlives its request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import structlog

from nanoserve.ports.errors import StepFailedError
from tests.unit.entrypoints.server.http.app_world import CONTEXT, AppWorld
from tests.unit.entrypoints.server.protocols.dialects import DIALECTS, Dialect, Json, comparable
from tests.unit.entrypoints.server.protocols.protocol_world import HTTP, serving

WISHES: dict[str, Json] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "one token": {"max_tokens": 1},
    "a stop string": {"stop": ["e", "th", "qx"], "max_tokens": 60},
    "a stop string kept": {"stop": ["t", "ab"], "include_stop_str_in_output": True, "max_tokens": 60},
    "a stop id": {"stop_token_ids": [5, 9], "max_tokens": 60},
    "the end of the sequence": {"ignore_eos": False, "max_tokens": 300},
    "at least": {"min_tokens": 20, "stop_token_ids": [3, 4], "max_tokens": 30},
    "log-probabilities": {"logprobs": True, "stop": ["e"]},
}


@pytest.fixture(params=DIALECTS, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def post(world: AppWorld, dialect: Dialect, body: Json) -> httpx.Response:
    return HTTP.post(world.url + dialect.path, json=body)


def both(world: AppWorld, dialect: Dialect, **wishes: Any) -> tuple[Json, Json]:
    """An answer put together from its stream, and the same in one."""
    extra: Json = dict(dialect.logprobs or {}) if wishes.pop("logprobs", False) else {}
    if dialect.whole is DIALECTS["chat"].whole:
        extra["stream_options"] = {"include_usage": True}
    streamed = post(world, dialect, {**dialect.ask(stream=True, **wishes), **extra})
    extra.pop("stream_options", None)
    whole = post(world, dialect, {**dialect.ask(stream=False, **wishes), **extra})
    assert (streamed.status_code, whole.status_code) == (200, 200), whole.text
    kind = "application/x-ndjson" if dialect.is_lines else "text/event-stream"
    assert streamed.headers["content-type"].startswith(kind)
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    return dialect.whole(dialect.events(streamed.text)), whole.json()


@pytest.mark.parametrize("wishes", WISHES.values(), ids=WISHES)
def test_a_stream_equals_the_whole_answer_field_by_field(
    world: AppWorld, dialect: Dialect, wishes: Json
) -> None:
    streamed, whole = both(world, dialect, **wishes)
    assert comparable(streamed) == comparable(whole)
    if wishes.get("logprobs") and dialect.logprobs:
        assert '"top_logprobs":[' in json.dumps(whole).replace(" ", "")


def test_every_protocol_has_the_same_answer(world: AppWorld) -> None:
    wholes = {name: both(world, dialect)[1] for name, dialect in DIALECTS.items()}
    told = {
        (DIALECTS[name].text(whole), *DIALECTS[name].usage(whole), DIALECTS[name].reason(whole))
        for name, whole in wholes.items()
    }
    assert len({each[:3] for each in told}) == 1
    assert {each[1:3] for each in told} == {(len("user.hello.assistant."), 12)}
    assert all(DIALECTS[name].reason(whole) == DIALECTS[name].ends[1] for name, whole in wholes.items())


def test_a_stop_ends_the_answer(world: AppWorld, dialect: Dialect) -> None:
    text = dialect.text(both(world, dialect)[1])
    for stop, expected in ((text[9:], text[:9]), (text[0], "")):
        for whole in both(world, dialect, stop=[stop]):
            if expected or dialect.path != "/v1/responses":
                assert whole.get("content") != [] or not expected
            assert dialect.text(whole) == expected
            assert dialect.reason(whole) in {dialect.ends[0], "stop_sequence"}
            assert dialect.usage(whole)[1] == (12 if expected else 1)


def test_a_failure_before_the_first_token_is_a_plain_error(dialect: Dialect, stream: bool) -> None:
    with serving() as world:
        world.call(lambda: world.engine.allow(0))
        with asking(world, dialect, dialect.ask(stream=stream)) as answer:
            world.wait_until(lambda: bool(world.engine.requests))
            world.call(world.engine.die)
        assert answer().status_code == 500
        assert answer().headers["content-type"] == "application/json"
        assert "died" in dialect.error(answer().json())
        world.wait_until(lambda: world.is_idle)


def test_a_failure_after_the_first_token_is_reported_in_the_stream(dialect: Dialect) -> None:
    with serving() as world:
        world.call(lambda: world.engine.allow(4))
        body = dialect.ask(stream=True)
        with HTTP.stream("POST", world.url + dialect.path, json=body) as answer:
            pieces = answer.iter_text()
            raw = next(pieces)
            world.wait_until(lambda: world.engine.budget == 0)
            world.call(world.engine.die)
            raw += "".join(pieces)
        assert answer.status_code == 200
        *before, last = dialect.events(raw)
        assert before
        assert "died" in dialect.error(last)
        world.wait_until(lambda: world.is_idle)


def test_a_step_that_fails_says_nothing_of_its_cause(dialect: Dialect, stream: bool) -> None:
    with serving(fail_at={1: StepFailedError("secret")}) as world, structlog.testing.capture_logs() as logs:
        failed = post(world, dialect, dialect.ask(stream=stream, min_p=0.25))
        world.settle()
        (told,) = [each for each in logs if each["event"] == "a request failed"]
        assert (told["log_level"], told["error"]) == ("error", "StepFailedError: secret")
        assert told["request_id"] == failed.headers["x-request-id"]
        assert told["engine_id"] == world.engine.requests[-1].request_id
        assert told["sampling"]["min_p"] == 0.25
        assert "hello" not in str(told)
        assert failed.status_code == 500
        assert "step" in dialect.error(failed.json())
        assert "secret" not in failed.text
        assert post(world, dialect, dialect.ask(stream=stream)).status_code == 200


def test_a_deadline_before_the_first_token_is_a_504(dialect: Dialect, stream: bool) -> None:
    with serving(request_timeout=600) as world:
        world.call(lambda: world.engine.allow(0))
        with asking(world, dialect, dialect.ask(stream=stream)) as answer:
            world.wait_until(lambda: bool(world.engine.requests))
            world.skip(1000)
            world.call(lambda: world.engine.allow(None))
        assert answer().status_code == 504
        assert "time" in dialect.error(answer().json())


def test_a_deadline_in_the_middle_keeps_what_was_said(dialect: Dialect, stream: bool) -> None:
    with serving(request_timeout=600) as world:
        world.call(lambda: world.engine.allow(4))
        with asking(world, dialect, dialect.ask(stream=stream)) as answer:
            world.wait_until(lambda: world.engine.budget == 0)
            world.skip(1000)
            world.call(lambda: world.engine.allow(None))
    if dialect.path == "/v1/messages":
        told = dialect.events(answer().text)[-1] if stream else answer().json()
        assert (answer().status_code, told["type"]) == (200 if stream else 504, "error")
        return
    assert answer().status_code == 200
    whole = dialect.whole(dialect.events(answer().text)) if stream else answer().json()
    assert 0 < len(dialect.text(whole)) < 12
    assert dialect.reason(whole) in {"length", "failed"}


def test_a_slow_first_token_is_waited_for_with_pings(dialect: Dialect) -> None:
    with serving(ping_interval=0.02) as world:
        world.call(lambda: world.engine.allow(0))
        body = dialect.ask(stream=True)
        with HTTP.stream("POST", world.url + dialect.path, json=body) as answer:
            pieces = answer.iter_text()
            raw = ""
            while raw.count(dialect.ping) < 2:
                raw += next(pieces)
            assert raw == dialect.ping * raw.count(dialect.ping)
            world.call(lambda: world.engine.allow(None))
            raw += "".join(pieces)
        whole = dialect.whole([each for each in dialect.events(raw) if each.get("type") != "ping"])
        assert len(dialect.text(whole)) == 12


def test_a_failure_after_a_ping_is_reported_in_the_stream(dialect: Dialect) -> None:
    with serving(ping_interval=0.02) as world:
        world.call(lambda: world.engine.allow(0))
        body = dialect.ask(stream=True)
        with HTTP.stream("POST", world.url + dialect.path, json=body) as answer:
            world.wait_until(lambda: bool(world.engine.requests))  # a ping may be sent before
            world.call(world.engine.die)
            raw = answer.read().decode()
        events = [each for each in dialect.events(raw) if each.get("type") != "ping"]
        assert "died" in dialect.error(events[-1])
        kinds = [each.get("type") for each in events]
        expected: list[Any] = ["error"] if dialect.path == "/v1/messages" else [None]
        if dialect.path == "/v1/responses":
            expected = ["response.created", "response.in_progress", "response.failed"]
        assert kinds == expected


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_client_that_leaves_stops_the_work(
    world: AppWorld, dialect: Dialect, stream: bool, turns: int
) -> None:
    before = len(world.engine.requests)
    world.call(lambda: world.engine.allow(turns))
    body = json.dumps(dialect.ask(stream=stream, max_tokens=400)).encode()
    head = (
        f"POST {dialect.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
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


def test_a_server_that_leaves_finishes_what_it_has_and_takes_no_more(dialect: Dialect, stream: bool) -> None:
    with serving() as world:
        world.call(lambda: world.engine.allow(1))
        with asking(world, dialect, dialect.ask(stream=stream)) as answer:
            world.wait_until(lambda: bool(world.engine.requests))
            world.call(world.service.reservations.begin_drain)
            refused = post(world, dialect, dialect.ask(stream=stream))
            world.call(lambda: world.engine.allow(None))
        assert refused.status_code == 503
        assert "shutting down" in dialect.error(refused.json())
        assert int(refused.headers["retry-after"]) >= 1
        assert answer().status_code == 200


def test_a_full_server_refuses_at_once(dialect: Dialect, stream: bool) -> None:
    with serving(max_waiting_requests=1) as world:
        facts = world.engine.facts
        world.call(lambda: world.engine.allow(0))
        assert facts is not None
        waiting = [asking(world, dialect, dialect.ask(stream=stream)) for _ in range(facts.max_num_seqs + 1)]
        with contextlib.ExitStack() as open_ones:
            answers = [open_ones.enter_context(each) for each in waiting]
            world.wait_until(lambda: len(world.engine.requests) == len(waiting))
            refused = post(world, dialect, dialect.ask(stream=stream))
            world.call(lambda: world.engine.allow(None))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert {each().status_code for each in answers} == {200}


def test_a_server_that_loads_asks_for_patience(world: AppWorld, dialect: Dialect, stream: bool) -> None:
    facts, world.engine.facts = world.engine.facts, None
    refused = post(world, dialect, dialect.ask(stream=stream))
    world.engine.facts = facts
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


def test_what_cannot_be_answered_is_refused_in_the_protocols_own_shape(
    world: AppWorld, dialect: Dialect, stream: bool
) -> None:
    body = dialect.ask(stream=stream)
    prompt = next(name for name in ("prompt", "messages", "input") if name in body)
    long = [{"role": "user", "content": "x" * CONTEXT}] if prompt == "messages" else "x" * CONTEXT
    before = len(world.engine.requests)
    changes: list[tuple[Json, int, str]] = [
        ({"model": "other"}, 404, "other"),
        ({prompt: long}, 400, "prompt is too long" if dialect.path == "/v1/messages" else "context"),
        ({prompt: 5}, 400, prompt),
    ]
    for change, status, words in changes:
        refused = post(world, dialect, {**body, **change})
        assert refused.status_code == status, refused.text
        assert words in dialect.error(refused.json())
    page = {"origin": "https://elsewhere.example"}
    for content, kind, status in (
        ("{", "application/json", 400),
        ("[]", "application/json", 400),
        ("x", "text/plain", 415),
    ):
        refused = HTTP.post(world.url + dialect.path, content=content, headers={"content-type": kind, **page})
        assert refused.status_code == status
        assert dialect.error(refused.json())
    assert HTTP.put(world.url + dialect.path).status_code == 405
    assert len(world.engine.requests) == before
    assert world.service.reservations.living == 0


def test_an_alias_is_answered_with_the_name_that_was_asked_for(dialect: Dialect, stream: bool) -> None:
    with serving(model_aliases=("claude-*", "gpt[mini]")) as world:
        for name in ("claude-opus-4", "gpt[mini]"):
            given = post(world, dialect, dialect.ask(stream=stream) | {"model": name})
            assert given.status_code == 200
            assert f'"model":"{name}"' in given.text
            assert '"scripted"' not in given.text
        for name in ("aclaude-x", "gptm", "claude", "claude-" + "x" * 10_000):
            refused = post(world, dialect, dialect.ask(stream=stream) | {"model": name})
            assert refused.status_code == 404
            assert "--model-alias" in dialect.error(refused.json())
        listed = HTTP.get(f"{world.url}/v1/models").json()
        assert [each["id"] for each in listed["data"]] == ["scripted", "alias"]
        one = HTTP.get(f"{world.url}/v1/models/claude-opus-4").json()
        assert (one["id"], one["root"]) == ("claude-opus-4", listed["data"][0]["root"])


def test_sampling_reaches_the_engine(world: AppWorld, dialect: Dialect) -> None:
    body = dialect.ask(stream=False, temperature=0.25, top_p=0.5, top_k=7, min_p=0.1, priority=2)
    post(world, dialect, body)
    request = world.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 7, 12)
    assert (request.priority, request.stream) == (2, False)
    assert request.cache_salt.partition("\0")[2].startswith("s")
    assert world.engine.prompt_text() == "user.hello.assistant."


@contextlib.contextmanager
def asking(world: AppWorld, dialect: Dialect, body: Json) -> Iterator[Callable[[], httpx.Response]]:
    """Ask, and let the test do something meanwhile; the answer is there at the end."""
    answers: list[httpx.Response] = []
    asker = threading.Thread(target=lambda: answers.append(post(world, dialect, body)), daemon=True)
    asker.start()
    yield lambda: answers[0]
    asker.join(60)
    assert answers
