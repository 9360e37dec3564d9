"""Load over a real socket against a server with known delays: what is measured is what was done to the client."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from nanoserve.entrypoints.bench.serving.client import (
    Connections,
    LoadRun,
    OfferedLoad,
    Outcome,
    RequestShape,
    draw_schedule,
    run_loop,
    send_load,
)
from nanoserve.entrypoints.bench.serving.level import LoadLevel, find_knee, heaviest_good, judge, say_knee
from nanoserve.entrypoints.client.server import read_address
from tests.patience import PATIENCE
from tests.unit.entrypoints.timed_server import Behaviour, TimedServer, timed_server

SLO = {"ttft": 600_000.0}


@pytest.fixture
def server() -> Iterator[TimedServer]:
    with timed_server() as served:
        yield served


def sent(
    server: TimedServer,
    count: int,
    *,
    at_once: int = 1,
    moments: Sequence[float] = (),
    tokens: int = 8,
    patience: float = PATIENCE,
    endpoint: str = "completions",
    block: float = 0.0,
) -> LoadLevel:
    """`block` seconds of the client's own loop are taken in the middle of an open loop."""
    address, usual = (
        read_address(server.url),
        {"model": "timed", "input_len": 5, "vocab_size": 100, "fields": {}},
    )
    shape = RequestShape(address=address, endpoint=endpoint, output_len=tokens, **usual)  # type: ignore[arg-type]
    requests = [shape.draw(random.Random(number)) for number in range(count)]

    async def measure() -> LoadRun:
        connections = Connections(address)
        if block:
            asyncio.get_running_loop().call_later(moments[-1] / 2, time.sleep, block)
        try:
            return await send_load(connections, requests, patience, moments=moments, at_once=at_once)
        finally:
            connections.close()

    load = OfferedLoad(rate=200.0) if moments else OfferedLoad(concurrency=at_once)
    return judge(load, run_loop(measure()), SLO)


def simulated(
    moments: Sequence[float],
    *,
    service: float,
    capacity: int = 1,
    rate: float | None = None,
    slo: dict[str, float] | None = None,
) -> LoadLevel:
    """What a client that is never late sees of a server that computes so many at once, one token in `service` seconds."""
    free, answers = [0.0] * capacity, []
    for moment in moments:
        end = max(moment, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        answers.append(Outcome(scheduled=moment, started=moment, arrivals=[end], ended=end, output_tokens=1))
    run = LoadRun(answers=answers, began=0.0, seconds=max(each.ended for each in answers), busy=0.0)
    return judge(OfferedLoad(rate=rate), run, slo or {})


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("extras", [False, True])
def test_the_figures_are_the_servers_delays(endpoint: str, extras: bool) -> None:
    """No wait is less than what the server took, and gaps are between what came; how much more it is, is the machine's."""
    with timed_server(Behaviour(first=0.1, gap=0.02, extras=extras)) as server:
        level = sent(server, 6, at_once=3, tokens=15, endpoint=endpoint)
    assert len(level.run.answers) == len(server.bodies) == level.completed == 6
    assert server.connections == 3, "connections are used again"
    mean = {name: each["mean"] for name, each in level.latencies.items()}
    assert mean["ttft"] >= 100
    assert mean["e2e"] >= max(100 + 14 * 20, mean["ttft"] + 14 * mean["tpot"])
    assert mean["itl"] == pytest.approx(mean["tpot"])
    assert level.output_tokens == 15
    assert level.output_tok_s == pytest.approx(6 * 15 / level.run.seconds)


def test_requests_are_sent_though_nothing_is_answered(server: TimedServer) -> None:
    server.behaviour = Behaviour(hold=20)
    assert sent(server, 20, moments=[number / 200 for number in range(20)]).completed == 20
    assert server.connections == 20


def test_a_client_that_is_late_counts_it_and_says_so(server: TimedServer) -> None:
    level = sent(server, 50, moments=[number / 100 for number in range(50)], block=0.3, tokens=2)
    assert level.latencies["lateness"]["most"] > 200
    assert level.latencies["ttft"]["most"] > 200, "latency counts from the moment in the schedule"
    assert "the schedule was not kept" in level.doubts[0]


def test_a_client_that_has_time_keeps_its_schedule() -> None:
    level = simulated(draw_schedule(150, 100, random.Random(1)), service=0.001, capacity=100, rate=150.0)
    assert level.latencies["lateness"]["most"] == 0
    assert not level.doubts
    assert not level.queue_grew


def test_a_queue_shows_in_what_the_last_ones_wait() -> None:
    """One request is computed at a time, 100 ms each; twenty come in a tenth of a second and wait for each other."""
    level = simulated([number / 200 for number in range(20)], service=0.1, rate=200.0)
    assert level.queue_grew
    assert level.latencies["e2e"]["p50"] == pytest.approx(1002.5, abs=50)
    assert level.latencies["e2e"]["most"] == pytest.approx(1905)
    assert level.request_s == pytest.approx(10)


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
    moments = [place / 4 for place in range(60)]
    answers = [
        Outcome(scheduled=moment, started=moment, arrivals=[moment + each], ended=moment + each)
        for moment, each in zip(moments, seconds, strict=True)
    ]
    run = LoadRun(answers=answers, began=0.0, seconds=30.0, busy=0.1)
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
    level = sent(server, 9)
    assert level.results == {"ok": 6, "503": 3}
    assert level.messages == {"503": "try again later"}
    assert level.latencies["e2e"]["p50"] >= 50
    assert level.good == pytest.approx(6 / 9), "a refused request kept no objective"
    answers = [
        Outcome(scheduled=0.0, started=0.0, arrivals=[0.05], ended=0.05),
        Outcome(scheduled=0.0, started=0.0, ended=0.002, result="503"),
    ]
    apart = judge(OfferedLoad(), LoadRun(answers=answers, began=0.0, seconds=1.0, busy=0.1), {})
    assert apart.latencies["refusal"]["most"] == pytest.approx(2)
    assert apart.latencies["e2e"]["most"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("behaviour", "patience", "result", "message"),
    [
        (Behaviour(break_after=3), PATIENCE, "connection", "the server closed the connection"),
        (Behaviour(break_after=3, chunked=False), PATIENCE, "broken off", ""),
        (Behaviour(break_after=3, error="engine died"), PATIENCE, "in-band error", "the server broke off: engine died"),
        (Behaviour(gap=600.0), 0.3, "timeout", "no whole answer within 0.3 s"),
    ],
)  # fmt: skip
def test_a_broken_answer_is_no_answer(
    server: TimedServer, behaviour: Behaviour, patience: float, result: str, message: str
) -> None:
    server.behaviour = behaviour
    level = sent(server, 2, patience=patience)
    assert level.results == {result: 2}
    assert level.messages.get(result, "") == message
    assert level.output_tok_s == 0


def test_a_server_that_is_gone_is_a_failed_request() -> None:
    with timed_server() as server:
        pass
    level = sent(server, 2)
    assert level.results == {"connection": 2}
    assert "refused" in level.messages["connection"].lower()


@pytest.mark.parametrize(
    ("behaviour", "count", "connections"),
    [(Behaviour(chunked=False), 3, 3), (Behaviour(close_idle=True), 10, 10), (Behaviour(), 10, 1)],
    ids=["bodies that end with the connection", "closed when idle", "kept"],
)
def test_connections_are_replaced_when_the_server_closes_them(
    server: TimedServer, behaviour: Behaviour, count: int, connections: int
) -> None:
    server.behaviour = behaviour
    assert sent(server, count).results == {"ok": count}
    assert server.connections == connections


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(usage=False, extras=True), Behaviour(first=0.05, says=("",))],
    ids=["uncounted", "no text"],
)
def test_pieces_count_where_the_server_counts_no_tokens_and_an_end_where_there_is_no_text(
    server: TimedServer, behaviour: Behaviour
) -> None:
    server.behaviour = behaviour
    level = sent(server, 2, tokens=7, endpoint="chat")
    assert (level.completed, level.output_tokens) == (2, 7)
    assert level.latencies["ttft"]["p50"] >= 1e3 * behaviour.first


def test_goodput_counts_those_that_keep_every_objective() -> None:
    """One at a time, 50 ms each, four at once: they end after 50, 100, 150 and 200 ms."""
    level = simulated([0.0] * 4, service=0.05, slo={"ttft": 130.0, "e2e": 60_000.0})
    assert level.good == pytest.approx(0.5)
    assert level.goodput == pytest.approx(2 / level.run.seconds)


def test_the_knee_is_where_more_load_only_makes_the_queue_longer() -> None:
    """Two at once and 50 ms each: 40 requests per second is all there is."""
    levels = [
        simulated(draw_schedule(rate, 24, random.Random(3)), service=0.05, capacity=2, rate=rate, slo={"e2e": 120.0})
        for rate in (16.0, 24.0, 200.0)
    ]  # fmt: skip
    assert (find_knee(levels), heaviest_good(levels)) == (1, 1)
    assert [level.queue_grew for level in levels] == [False, False, True]
    assert say_knee(levels)[0].startswith("knee: 24 req/s gives the most throughput")
    assert "may lie beyond" in say_knee(levels[:2])[0]


def test_a_server_that_drowns_has_no_knee() -> None:
    """One request at a time, 5.4 s each: 0.185 answers per second."""
    lightest, *drowning = (
        simulated([place / rate for place in range(10)], service=5.4, rate=rate) for rate in (0.1, 1.0, 2.0)
    )
    (said,) = say_knee(drowning)
    assert said.startswith("no knee: the server kept up with no load (0.185 answers per second at 1 req/s)")
    assert find_knee([lightest, *drowning]) == 0
