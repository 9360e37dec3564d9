"""`/live` over real sockets: what viewers are told, how many there may be, and that they disturb nobody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, WatchSettings
from nanoserve.entrypoints.server.watch import live as live_route
from nanoserve.entrypoints.server.watch.live import LiveStatus
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.engine_link import Logged
from tests.unit.adapters.engine_process.client.log_reader import without_time
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world
from tests.unit.entrypoints.server.watch.live_stream import LiveStream, live

BODY: dict[str, Any] = {"model": "scripted", "prompt": "ab", "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_route, "STATUS_PERIOD", 0.05)


@pytest.fixture
def world() -> Iterator[AppWorld]:
    with app_world(watch=WatchSettings(max_viewers=11)) as opened:
        yield opened


def is_trace(name: str, _: Any) -> bool:
    return name == "trace"


def complete(world: AppWorld, **changes: Any) -> None:
    with world.client() as client:
        answer = client.post("/v1/completions", json=BODY | changes)
    assert answer.status_code == 200, answer.text


def test_a_viewer_gets_the_status_the_header_and_then_every_step(world: AppWorld) -> None:
    complete(world)
    with world.client() as client, live(client) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        stream.until(is_trace)
        assert [name for name, _ in stream.events if name != "status"] == ["header", "trace"]
        assert stream.events[0][0] == "status"
        assert (stream.of("header")[0]["model"], stream.of("header")[0]["version"]) == ("scripted", 1)
        complete(world)
        stream.until(lambda *_: stream.reader.state.finished.get("length") == 2)
        engine = world.engine.engine
        books = world.call(lambda: read_snapshot(engine.scheduler, at=0.0))
        assert stream.reader.state == without_time(books)


def test_the_status_has_every_number(world: AppWorld) -> None:
    world.engine.state = EngineState(
        at=1.0, last_step=1.0, running=2, waiting=1, steps=9, free_blocks=750, cached_blocks=5
    )
    with world.client() as client, live(client, "?steps=false") as stream:
        _, status = stream.next()
    assert list(status) == list(LiveStatus.__struct_fields__)
    assert (status["status"], status["open"], status["draining"]) == ("ready", True, False)
    assert (status["running"], status["waiting"], status["steps"], status["viewers"]) == (2, 1, 9, 1)
    assert status["blocks"] == {"total": 1000, "free": 750, "cached": 5}
    assert status["ttft"] is status["itl"] is None
    complete(world)
    with world.client() as client, live(client, "?steps=false") as stream:
        _, status = stream.next()
    assert status["rejected"] == {}
    world.server.live.measurements.tallies.rejected.add("unavailable")
    with world.client() as client, live(client, "?steps=false") as stream:
        assert stream.next()[1]["rejected"] == {"unavailable": 1}
    assert 0 < status["ttft"]["p50"] <= status["ttft"]["p99"]


def test_without_steps_there_are_only_status_events_and_nothing_is_recorded(world: AppWorld) -> None:
    with world.client() as client, live(client, "?steps=false") as stream:
        stream.next()
        complete(world)
        assert world.call(lambda: world.engine.engine.scheduler.cache.journal) is None
        at = [stream.next()[1]["at"] for _ in range(3)]
        assert {name for name, _ in stream.events} == {"status"}
        assert at[2] - at[0] >= 0.9, "more than two per second"


@pytest.mark.usefixtures("short_period")
def test_recording_ends_with_the_last_viewer(world: AppWorld) -> None:
    with world.client() as one, live(one) as stream:
        stream.until(is_trace)
        with world.client() as two, live(two) as other:
            other.until(is_trace)
        assert world.call(lambda: world.engine.watched.watching.recorder)
    world.settle()
    assert not world.call(lambda: world.engine.watched.watching.recorder)
    assert world.server.live.viewers == 0


def test_an_engine_that_comes_back_brings_a_new_header_and_a_snapshot(world: AppWorld) -> None:
    with world.client() as client, live(client) as stream:
        stream.until(is_trace)

        def restart() -> None:
            world.engine.status = EngineStatus.RESTARTING
            world.engine.watched.tell(EngineStatus.RESTARTING)
            world.engine.status = EngineStatus.READY
            world.engine.watched.tell(EngineStatus.READY)
            header = json.dumps(stream.of("header")[0] | {"num_blocks": 5}).encode()
            world.engine.watched.tell(Logged(b'["snapshot",9.0,0,[],[[]],0,{},0,0,0]', header, follows=False))

        world.call(restart)
        stream.until(lambda *_: len(stream.reader.snapshots) == 2)
        assert stream.reader.statuses == ["restarting", "ready"]
        assert [each["num_blocks"] for each in stream.of("header")] == [1000, 5]


def test_it_answers_while_the_model_loads() -> None:
    with app_world(is_open=False) as world:
        world.engine.status, world.engine.facts, world.engine.state = EngineStatus.STARTING, None, None
        with world.client() as client, live(client) as stream:
            status = stream.next()[1]
    assert stream.response.status_code == 200
    assert (status["status"], status["open"], status["blocks"]["total"]) == ("starting", False, 0)


def test_there_is_a_bound_on_viewers_and_a_gauge_of_them(world: AppWorld) -> None:
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(live(stack.enter_context(world.client()), "?steps=false")) for _ in range(11)
        ]
        for each in streams:
            each.next()
        with world.client() as client:
            with client.stream("GET", "/live") as refused:
                assert refused.status_code == 503
                refused.read()
            assert refused.json()["error"]["code"] == "too_many_viewers"
            assert "--max-viewers" in refused.json()["error"]["message"]
            assert 'nanoserve:viewers{engine="0",model_name="scripted"} 11.0' in client.get("/metrics").text
    world.settle()
    with world.client() as client, live(client) as stream:
        assert stream.next()[0] == "status"


@pytest.mark.usefixtures("short_period")
def test_four_viewers_of_which_one_never_reads(world: AppWorld) -> None:
    with contextlib.ExitStack() as stack:
        streams: list[LiveStream] = []
        for _ in range(3):
            streams.append(stack.enter_context(live(stack.enter_context(world.client()))))
            streams[-1].until(is_trace)
        stuck = stack.enter_context(world.connect())
        stuck.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert stuck.recv(1)
        for _ in range(8):
            complete(world, n=4)
        for each in streams:
            each.until(lambda *_, each=each: each.reader.state.finished.get("length") == 32)
            assert len(each.reader.snapshots) == 1
        assert world.call(lambda: world.server.live.viewers) == 4


def test_a_viewer_needs_a_key_and_wrong_queries_are_refused() -> None:
    with app_world(access=AccessSettings(api_key=(Secret("sk-1"),))) as world:
        with world.client() as client:
            assert client.get("/live").status_code == 401
        with world.client("sk-1") as client:
            assert client.get("/live?steps=many").status_code == 400
            with live(client) as stream:
                assert stream.next()[0] == "status"


def test_without_a_page_there_is_nothing_to_watch() -> None:
    with app_world(ui=False) as world, world.client() as client, live(client) as stream:
        assert stream.response.status_code == 404


def test_a_viewer_leaves_one_quiet_line_and_no_trace_in_the_counts(world: AppWorld) -> None:
    world.settle()
    with structlog.testing.capture_logs() as logs:
        with world.client() as client, live(client) as stream:
            stream.until(is_trace)
        world.settle()
    lines = [each for each in logs if each["event"] == "request"]
    assert [(each["path"], each["status"]) for each in lines] == [("/live", 200)]
    assert "left" not in lines[0]
    assert world.call(lambda: world.engine.requests) == []
    assert world.server.measurements.tallies.exchanges["disconnected"] == 0


def test_the_closed_feed_ends_the_streams_with_a_last_word(world: AppWorld) -> None:
    def leave() -> None:
        world.server.health.is_draining = True
        world.server.live.feed.close()

    with (
        world.client() as client,
        live(client) as steps,
        world.client() as other,
        live(other, "?steps=false") as plain,
    ):
        steps.until(is_trace)
        plain.next()
        world.call(leave)
        for each in (steps, plain):
            assert each.rest()[-1][0] == "status"
            assert each.of("status")[-1]["draining"] is True
