"""Load over a real socket against a server with known delays: what is measured is what was done to the client."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator

import pytest

from nanoserve.entrypoints.bench.serving.bodies import RequestShape
from nanoserve.entrypoints.bench.serving.connection import Connections
from nanoserve.entrypoints.bench.serving.level import LoadLevel, judge
from nanoserve.entrypoints.bench.serving.outcome import RequestOutcome
from nanoserve.entrypoints.bench.serving.running import (
    LoadRun,
    draw_schedule,
    run_closed,
    run_loop,
    run_open,
)
from nanoserve.entrypoints.client.address import Address, read_address
from tests.unit.entrypoints.timed_server import Behaviour, TimedServer, timed_server, undisturbed

PATIENCE = 60.0


@pytest.fixture
def server() -> Iterator[TimedServer]:
    with timed_server() as served:
        yield served


def shape(address: Address, *, tokens: int = 8, endpoint: str = "completions") -> RequestShape:
    return RequestShape(
        address=address,
        endpoint=endpoint,
        model="timed",
        input_len=5,
        output_len=tokens,
        vocab_size=100,
        fields={},
    )


def closed(
    server: TimedServer,
    count: int,
    *,
    clients: int = 1,
    tokens: int = 8,
    slo: dict[str, float] | None = None,
    patience: float = PATIENCE,
    endpoint: str = "completions",
) -> LoadLevel:
    address = read_address(server.url)
    draw = random.Random(0)
    requests = [shape(address, tokens=tokens, endpoint=endpoint).draw(draw) for _ in range(count)]

    async def measure() -> LoadLevel:
        connections = Connections(address)
        try:
            run = await run_closed(connections, requests, clients, patience)
            return judge(run, slo or {}, concurrency=clients)
        finally:
            connections.close()

    return run_loop(measure())


def open_loop(server: TimedServer, moments: list[float], *, tokens: int = 2, block: float = 0.0) -> LoadLevel:
    """`block` seconds of the client's own loop are taken in the middle of the run."""
    address = read_address(server.url)
    draw = random.Random(0)
    requests = [shape(address, tokens=tokens).draw(draw) for _ in moments]

    async def measure() -> LoadLevel:
        connections = Connections(address)
        if block:
            asyncio.get_running_loop().call_later(moments[-1] / 2, time.sleep, block)
        try:
            run = await run_open(connections, requests, moments, PATIENCE)
            return judge(run, {}, rate=len(moments) / (moments[-1] or 1.0))
        finally:
            connections.close()

    return run_loop(measure())


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("extras", [False, True])
def test_the_figures_are_the_servers_delays(endpoint: str, extras: bool) -> None:
    def measure() -> LoadLevel:
        with timed_server(Behaviour(first=0.1, gap=0.02, extras=extras)) as server:
            level = closed(server, 6, clients=3, tokens=15, endpoint=endpoint)
        assert level.requests == len(server.bodies) == 6
        assert server.connections == 3, "connections are used again"
        return level

    def is_exact(level: LoadLevel) -> bool:
        return level.ttft.p50 < 130 and max(level.itl.p50, level.tpot.p50) < 30 and level.e2e.p50 < 550

    level = undisturbed(measure, is_exact)
    assert is_exact(level)
    assert level.completed == 6
    assert level.ttft.p50 >= 100
    assert level.itl.p50 >= 20
    assert level.tpot.p50 >= 20
    assert level.e2e.p50 >= 100 + 14 * 20
    assert level.output_tokens == 15
    assert level.output_tok_s == pytest.approx(6 * 15 / level.seconds)


def test_a_stall_shows_in_an_open_loop_and_hides_in_a_closed_one() -> None:
    """Half a second in which nothing moves: one client at a time meets it once, all who would have come do."""
    stalling = Behaviour(first=0.005, stall=(0.15, 0.5))

    def measure_both() -> tuple[LoadLevel, LoadLevel]:
        with timed_server(stalling) as server:
            hidden = closed(server, 60, tokens=2)
        with timed_server(stalling) as server:
            return hidden, open_loop(server, [number / 60 for number in range(60)])

    hidden, seen = undisturbed(measure_both, lambda both: both[0].ttft.p90 < 100 and both[1].ttft.p90 > 300)
    assert hidden.ttft.most > 400
    assert hidden.ttft.p90 < 100
    assert seen.completed == 60
    assert seen.ttft.p90 > 300, "a third of all requests came while nothing moved"


def test_requests_are_sent_though_nothing_is_answered() -> None:
    """One request is computed at a time, 100 ms each; twenty come in a tenth of a second and wait for each other."""

    def measure() -> LoadLevel:
        with timed_server(Behaviour(first=0.1, capacity=1)) as server:
            level = open_loop(server, [number / 200 for number in range(20)], tokens=1)
        assert server.connections == 20
        return level

    level = undisturbed(measure, lambda level: level.e2e.p50 < 1300 and level.e2e.most < 2300)
    assert level.queue_grew
    assert 900 < level.e2e.p50 < 1300
    assert 1800 < level.e2e.most < 2300
    assert level.request_s == pytest.approx(10, rel=0.15)


def test_a_client_that_is_late_counts_it_and_says_so(server: TimedServer) -> None:
    level = open_loop(server, [number / 100 for number in range(50)], block=0.3)
    assert not level.schedule_kept
    assert level.lateness.most > 200
    assert level.ttft.most > 200, "latency counts from the moment in the schedule"
    assert "the schedule was not kept" in level.doubts[0]


def test_a_client_that_has_time_keeps_its_schedule(server: TimedServer) -> None:
    moments = draw_schedule(150, 100, random.Random(1))
    level = undisturbed(
        lambda: open_loop(server, moments), lambda level: level.schedule_kept and level.lateness.p50 < 5
    )
    assert level.schedule_kept, level.lateness
    assert level.lateness.p50 < 5
    assert not level.doubts
    assert not level.queue_grew
    assert level.request_s == pytest.approx(100 / moments[-1], rel=0.2)


@pytest.mark.parametrize(
    ("seconds", "grows"),
    [
        ([0.1] * 60, False),
        ([0.1 + 0.02 * place for place in range(60)], True),
        ([0.1 + 0.2 * place for place in range(60)], True),
        ([5.0 + 0.02 * place for place in range(60)], False),
        ([0.1] * 40 + [0.2] * 20, False),
    ],
)
def test_a_queue_grows_where_answers_take_ever_longer(seconds: list[float], grows: bool) -> None:
    outcomes = [
        RequestOutcome(
            scheduled=place / 4, started=place / 4, arrivals=[place / 4 + each], ended=place / 4 + each
        )
        for place, each in enumerate(seconds)
    ]
    run = LoadRun(outcomes=outcomes, began=0.0, ended=30.0, busy=0.1)
    assert judge(run, {}, rate=4.0).queue_grew is grows
    assert not judge(run, {}, concurrency=4).queue_grew


def test_the_schedule_is_poisson() -> None:
    moments = draw_schedule(50, 20_000, random.Random(0))
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    assert 0 <= moments[0] <= moments[-1] <= 20_000 / 50
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.06)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_refusals_are_counted_by_status_and_timed_apart(server: TimedServer) -> None:
    server.behaviour = Behaviour(first=0.05, refuse=(3, 503))
    level = undisturbed(
        lambda: closed(server, 9, slo={"ttft": 60_000.0}), lambda level: level.refusal.most < 50
    )
    assert level.results == {"ok": 6, "503": 3}
    assert level.messages == {"503": "try again later"}
    assert level.refusal.most < 50 < level.e2e.p50
    assert level.good == pytest.approx(6 / 9), "a refused request kept no objective"


@pytest.mark.parametrize(
    ("behaviour", "patience", "result", "message"),
    [
        (Behaviour(break_after=3), PATIENCE, "connection", "the server closed the connection"),
        (Behaviour(break_after=3, chunked=False), PATIENCE, "broken off", ""),
        (Behaviour(break_after=3, error="engine died"), PATIENCE, "in-band error", "engine died"),
        (Behaviour(gap=600.0), 0.3, "timeout", "no whole answer within 0.3 s"),
    ],
)
def test_a_broken_answer_is_no_answer(
    server: TimedServer, behaviour: Behaviour, patience: float, result: str, message: str
) -> None:
    server.behaviour = behaviour
    level = closed(server, 2, patience=patience)
    assert level.results == {result: 2}
    assert level.messages.get(result, "") == message
    assert level.output_tok_s == 0


def test_a_server_that_is_gone_is_a_failed_request() -> None:
    with timed_server() as server:
        pass
    level = closed(server, 2)
    assert level.results == {"connection": 2}
    assert "refused" in level.messages["connection"].lower()


def test_bodies_may_end_with_the_connection(server: TimedServer) -> None:
    server.behaviour = Behaviour(chunked=False)
    level = closed(server, 3)
    assert level.results == {"ok": 3}
    assert server.connections == 3


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(server: TimedServer) -> None:
    server.behaviour = Behaviour(close_idle=True)
    assert closed(server, 10).results == {"ok": 10}


def test_pieces_are_counted_where_the_server_counts_no_tokens(server: TimedServer) -> None:
    server.behaviour = Behaviour(usage=False, extras=True)
    level = closed(server, 2, tokens=7, endpoint="chat")
    assert level.output_tokens == 7


def test_an_answer_without_visible_text_has_a_first_token_too(server: TimedServer) -> None:
    server.behaviour = Behaviour(first=0.05, says=("",))
    level = closed(server, 2, tokens=1)
    assert level.completed == 2
    assert level.ttft.p50 >= 50


def test_goodput_counts_those_that_keep_every_objective() -> None:
    """One at a time, 50 ms each, four at once: they wait 0, 50, 100 and 150 ms."""
    with timed_server(Behaviour(first=0.05, capacity=1)) as server:
        level = undisturbed(
            lambda: closed(server, 4, clients=4, tokens=1, slo={"ttft": 130.0, "e2e": 60_000.0}),
            lambda level: level.good == 0.5,
        )
    assert level.good == pytest.approx(0.5)
    assert level.goodput == pytest.approx(2 / level.seconds)
