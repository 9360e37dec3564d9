"""Load over a real socket against a server with known delays: what is measured is what was done to the client."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from nanoserve.entrypoints.bench.serving.connection import Connections
from nanoserve.entrypoints.bench.serving.level import LoadKnee, LoadLevel, find_knee, judge
from nanoserve.entrypoints.bench.serving.requests import RequestOutcome, RequestShape
from nanoserve.entrypoints.bench.serving.results import say_knee
from nanoserve.entrypoints.bench.serving.running import (
    LoadRun,
    OfferedLoad,
    draw_schedule,
    run_closed,
    run_loop,
    run_open,
)
from nanoserve.entrypoints.client.server import Address, read_address
from tests.patience import PATIENCE
from tests.unit.entrypoints.timed_server import Behaviour, TimedServer, timed_server


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
            return judge(OfferedLoad(concurrency=clients), run, slo or {})
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
            return judge(OfferedLoad(rate=len(moments) / (moments[-1] or 1.0)), run, {})
        finally:
            connections.close()

    return run_loop(measure())


def simulated(
    moments: Sequence[float],
    *,
    service: float,
    capacity: int = 1,
    rate: float | None = None,
    slo: dict[str, float] | None = None,
) -> LoadLevel:
    """What a client that is never late sees of a server that computes so many at once, one token in `service` seconds."""
    free, outcomes = [0.0] * capacity, []
    for moment in moments:
        end = max(moment, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        outcomes.append(
            RequestOutcome(scheduled=moment, started=moment, arrivals=[end], ended=end, output_tokens=1)
        )
    run = LoadRun(outcomes=outcomes, began=0.0, ended=max(each.ended for each in outcomes), busy=0.0)
    return judge(OfferedLoad(rate=rate), run, slo or {})


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("extras", [False, True])
def test_the_figures_are_the_servers_delays(endpoint: str, extras: bool) -> None:
    """No figure is less than what the server took; how much more it is, is the machine's."""
    with timed_server(Behaviour(first=0.1, gap=0.02, extras=extras)) as server:
        level = closed(server, 6, clients=3, tokens=15, endpoint=endpoint)
    assert len(level.run.outcomes) == len(server.bodies) == 6
    assert server.connections == 3, "connections are used again"
    assert level.completed == 6
    assert level.latencies["ttft"].p50 >= 100
    assert level.latencies["itl"].p50 >= 20
    assert level.latencies["tpot"].p50 >= 20
    assert level.latencies["e2e"].p50 >= 100 + 14 * 20
    assert level.output_tokens == 15
    assert level.output_tok_s == pytest.approx(6 * 15 / level.run.seconds)


def test_requests_are_sent_though_nothing_is_answered(server: TimedServer) -> None:
    server.behaviour = Behaviour(hold=20)
    assert open_loop(server, [number / 200 for number in range(20)]).completed == 20
    assert server.connections == 20


def test_a_queue_shows_in_what_the_last_ones_wait() -> None:
    """One request is computed at a time, 100 ms each; twenty come in a tenth of a second and wait for each other."""
    level = simulated([number / 200 for number in range(20)], service=0.1, rate=200.0)
    assert level.queue_grew
    assert level.latencies["e2e"].p50 == pytest.approx(1002.5, abs=50)
    assert level.latencies["e2e"].most == pytest.approx(1905)
    assert level.request_s == pytest.approx(10)


def test_a_client_that_is_late_counts_it_and_says_so(server: TimedServer) -> None:
    level = open_loop(server, [number / 100 for number in range(50)], block=0.3)
    assert not level.schedule_kept
    assert level.latencies["lateness"].most > 200
    assert level.latencies["ttft"].most > 200, "latency counts from the moment in the schedule"
    assert "the schedule was not kept" in level.doubts[0]


def test_a_client_that_has_time_keeps_its_schedule() -> None:
    level = simulated(draw_schedule(150, 100, random.Random(1)), service=0.001, capacity=100, rate=150.0)
    assert level.schedule_kept
    assert level.latencies["lateness"].most == 0
    assert not level.doubts
    assert not level.queue_grew


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
    assert judge(OfferedLoad(rate=4.0), run, {}).queue_grew is grows
    assert not judge(OfferedLoad(concurrency=4), run, {}).queue_grew


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
    level = closed(server, 9, slo={"ttft": 600_000.0})
    assert level.results == {"ok": 6, "503": 3}
    assert level.messages == {"503": "try again later"}
    assert level.latencies["e2e"].p50 >= 50
    assert level.good == pytest.approx(6 / 9), "a refused request kept no objective"
    outcomes = [
        RequestOutcome(scheduled=0.0, started=0.0, arrivals=[0.05], ended=0.05),
        RequestOutcome(scheduled=0.0, started=0.0, ended=0.002, result="503"),
    ]
    apart = judge(OfferedLoad(), LoadRun(outcomes=outcomes, began=0.0, ended=1.0, busy=0.1), {})
    assert apart.latencies["refusal"].most == pytest.approx(2)
    assert apart.latencies["e2e"].most == pytest.approx(50)


@pytest.mark.parametrize(
    ("behaviour", "patience", "result", "message"),
    [
        (Behaviour(break_after=3), PATIENCE, "connection", "the server closed the connection"),
        (Behaviour(break_after=3, chunked=False), PATIENCE, "broken off", ""),
        (
            Behaviour(break_after=3, error="engine died"),
            PATIENCE,
            "in-band error",
            "the server broke off: engine died",
        ),
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
    assert level.latencies["ttft"].p50 >= 50


def test_goodput_counts_those_that_keep_every_objective() -> None:
    """One at a time, 50 ms each, four at once: they end after 50, 100, 150 and 200 ms."""
    level = simulated([0.0] * 4, service=0.05, slo={"ttft": 130.0, "e2e": 60_000.0})
    assert level.good == pytest.approx(0.5)
    assert level.goodput == pytest.approx(2 / level.run.seconds)


def test_the_knee_is_where_more_load_only_makes_the_queue_longer() -> None:
    """Two at once and 50 ms each: 40 requests per second is all there is."""
    levels = [
        simulated(
            draw_schedule(rate, 24, random.Random(3)), service=0.05, capacity=2, rate=rate, slo={"e2e": 120.0}
        )
        for rate in (16.0, 24.0, 200.0)
    ]
    assert find_knee(levels) == LoadKnee(at=1, is_last=False, best_within_slo=1)
    assert [level.queue_grew for level in levels] == [False, False, True]
    assert say_knee(levels, find_knee(levels))[0].startswith("knee: 24 req/s gives the most throughput")


def drowning(rate: float, count: int = 10) -> LoadLevel:
    """One request at a time, 5.4 s each: 0.185 answers per second."""
    return simulated([place / rate for place in range(count)], service=5.4, rate=rate)


def test_a_server_that_drowns_has_no_knee() -> None:
    levels = [drowning(1.0), drowning(2.0)]
    knee = find_knee(levels)
    assert knee.at is None
    (said,) = say_knee(levels, knee)
    assert said.startswith("no knee: the server kept up with no load (0.185 answers per second at 1 req/s)")
    with_one = [simulated([place / 0.1 for place in range(10)], service=5.4, rate=0.1), *levels]
    assert find_knee(with_one) == LoadKnee(at=0, is_last=False, best_within_slo=None)
