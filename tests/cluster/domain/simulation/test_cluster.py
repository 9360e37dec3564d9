from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.routing.policies import POLICIES
from nanoserve_cluster.domain.simulation.cluster import Cluster
from nanoserve_cluster.domain.simulation.summary import by_window, summarise
from nanoserve_cluster.domain.simulation.workload import WorkloadShape, draw_trace
from nanoserve_cluster.ports.simulation import Incident, Outage, RollingRestart, ScaleUp, Scenario
from tests.cluster.domain.simulation.small_cluster import make_engine, request, serve

SHAPE = WorkloadShape(
    rate=0.6,
    duration=60.0,
    tenants=3,
    system_tokens=12,
    user_tokens=8,
    answer_tokens=6,
    turns=2.5,
    think_seconds=8.0,
)
TRACE = draw_trace(SHAPE, random.Random(3))


def test_times_are_those_computed_by_hand() -> None:
    run = serve([request(0.5, (2, 20)), request(1.0, (4, 5))], replicas=1)
    first, second = run.served
    # 20 tokens take 2 s, then a decode of 1 s is queued behind them already. The next arrival is seen at 2.5, is computed
    # with the second decode, from 3.5 to 4.5, and then decodes twice alone.
    assert (first.ttft, first.e2e) == (2.0, 4.0)
    assert (second.ttft, second.e2e) == (3.5, 5.5)
    assert first.tpot == 1.0
    assert run.ended == 6.5
    assert (run.steps, run.busy_seconds, run.replica_seconds) == (5, 6.0, 6.5)
    figures = summarise(run, {"ttft": 2.5, "e2e": 60.0})
    assert (figures.answered, figures.good_share, figures.ttft.p99) == (2, 0.5, 3.5)
    assert figures.itl.p50 == pytest.approx(1.0, rel=0.01)
    assert sum(sum(counts.values()) for counts in run.gaps.values()) == 4
    assert {window: each.answered for window, each in by_window(run, {}).items()} == {0: 2, 1: 0}


def test_prompts_are_computed_elsewhere_and_cost_nothing_where_they_are_decoded() -> None:
    apart: dict[str, Any] = {"replicas": 1, "prefill_replicas": 1, "prefill_tokens": 10, "handover": 0.05}
    run = serve([request(0.0, (2, 20)), request(0.0, (4, 5), answer=9)], **apart)
    short, long = sorted(run.served, key=lambda each: each.prompt_tokens)
    # The short one is computed where it is decoded, from 0 to 1. The prompt of the long one is computed by 2 and handed over by 3; the
    # next step begins at 3 or, as one is queued already, at 4, and takes a second as if it had one token more.
    assert (short.ttft, short.e2e) == (1.0, 9.0)
    assert (long.ttft, long.e2e) == (5.0, 7.0)
    assert long.replica == short.replica == 0
    together = serve([request(0.0, (2, 20)), request(0.0, (4, 5), answer=9)], replicas=1)
    assert max(each.ttft for each in together.served) < long.ttft
    assert max(each.e2e for each in together.served) > short.e2e


@pytest.mark.parametrize("died", [0, 1])
def test_a_dead_replica_loses_no_request_whichever_half_it_had(died: int) -> None:
    outage = Outage(at=12.0, seconds=9.0, replicas=(died,))
    apart: dict[str, Any] = {"replicas": 1, "prefill_replicas": 1, "prefill_tokens": 8, "handover": 0.01}
    first, second = (
        serve(TRACE, policy="lmetric", incidents=(outage,), report_delay=0.3, **apart) for _ in range(2)
    )
    assert first == second
    assert len(first.served) == first.sent == len(TRACE)
    assert {each.replica for each in first.served} == {0}
    assert any(each.attempts > 1 for each in first.served)


def test_the_answer_of_a_turn_before_is_found() -> None:
    turns = [request(0.0, (2, 9), answer=8), request(50.0, (2, 9), (3, 8), (4, 2), answer=1)]
    run = serve(turns, replicas=1)
    # 17 tokens of the first turn, of which the last was never computed, are 4 full blocks.
    assert [each.cached_tokens for each in run.served] == [0, 16]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_every_time_and_audited_after_every_turn(policy: str) -> None:
    incidents = (Outage(at=20.0, seconds=9.0, replicas=(0, 2)), ScaleUp(at=30.0, replicas=1))
    first, second = (
        serve(TRACE, replicas=3, policy=policy, incidents=incidents, report_delay=0.3) for _ in range(2)
    )
    assert first == second
    assert len(first.served) == first.sent == len(TRACE)
    assert sum(each.attempts > 1 for each in first.served) > 0


@pytest.mark.parametrize("policy", ["least-running", "lmetric"])
def test_turns_that_no_other_replica_notices_may_come_in_any_order(policy: str) -> None:
    """With steps that might take no time at all no replica runs ahead of the others; with the known least time they do."""
    trace = draw_trace(attrs.evolve(SHAPE, rate=1.2, answer_tokens=30), random.Random(4))
    incidents: tuple[Incident, ...] = (
        *(Outage(at=5.0 * each, seconds=2.0, replicas=(each % 4,)) for each in range(1, 8)),
        RollingRestart(at=39.0, seconds=2.0, at_once=2),
        ScaleUp(at=40.0, replicas=1),
    )
    scenario = Scenario(
        policy=policy, replicas=4, incidents=incidents, report_delay=0.3, block_size=4, index_blocks=60
    )
    ahead, in_turn = (
        Cluster(scenario, make, random.Random(0)).run(trace)
        for make in (make_engine, lambda: attrs.evolve(make_engine(), least_step=0.0))
    )
    assert ahead == in_turn
    assert ahead.preemptions > 0


def test_an_answer_that_a_sequence_has_no_room_for_ends_in_time() -> None:
    """Its replica, which drains, is turned when it ends: at 200 tokens, not at those that were asked for."""
    run = serve(
        [request(0.0, (2, 150), answer=500)], replicas=1, incidents=[RollingRestart(at=9.0, seconds=2.0)]
    )
    assert [each.output_tokens for each in run.served] == [50]


def test_a_death_loses_nothing_and_what_it_had_is_computed_elsewhere() -> None:
    trace = [request(0.0, (2, 20)), request(0.1, (4, 20)), request(30.0, (2, 20)), request(31.0, (2, 20))]
    run = serve(trace, incidents=[Outage(at=1.0, seconds=10.0, replicas=(0,))])
    assert [
        (each.at, each.replica, each.attempts) for each in sorted(run.served, key=lambda each: each.at)
    ] == [
        (0.0, 1, 2),
        (0.1, 1, 1),
        (30.0, 0, 1),
        (31.0, 1, 1),
    ]
    # The restarted replica's cache is empty, the other one has the prompt from the second attempt.
    assert [each.cached_tokens for each in run.served if each.at >= 30] == [0, 16]
    assert run.replica_seconds == pytest.approx(2 * run.ended - 10.0)


def test_what_a_step_yields_after_the_death_is_not_yielded() -> None:
    # The only token comes at 2.0, at which the replica has been dead for a tenth of a second.
    run = serve(
        [request(0.0, (2, 20), answer=1)], replicas=1, incidents=[Outage(at=1.9, seconds=5.0, replicas=(0,))]
    )
    (served,) = run.served
    assert served.attempts == 2
    assert served.ttft == pytest.approx(1.9 + 5.0 + 2.0)


def test_requests_wait_while_every_replica_is_away() -> None:
    incidents = [Outage(at=1.0, seconds=10.0, replicas=(0, 1))]
    run = serve([request(2.0, (2, 8)), request(3.0, (4, 8))], incidents=incidents)
    assert [(each.ttft, each.attempts) for each in run.served] == [(10.0, 1), (9.0, 1)]


def test_a_rolling_restart_drains_one_after_the_other_and_retries_nothing() -> None:
    trace = [request(float(at), (2 * at, 8), answer=6) for at in range(60)]
    run = serve(trace, replicas=3, incidents=[RollingRestart(at=5.0, seconds=4.0)])
    assert len(run.served) == len(trace)
    assert {each.attempts for each in run.served} == {1}
    assert run.replica_seconds == pytest.approx(3 * run.ended - 3 * 4.0)
    away = [{each.replica for each in run.served if at <= each.at < at + 4} for at in range(5, 30)]
    assert min(map(len, away)) == 2


def test_a_rolling_restart_goes_on_when_a_draining_replica_dies() -> None:
    incidents = [RollingRestart(at=5.0, seconds=4.0), Outage(at=5.5, seconds=1.0, replicas=(0,))]
    trace = [request(4.5, (2, 20), answer=30), request(40.0, (4, 8))]
    run = serve(trace, replicas=2, incidents=incidents)
    assert len(run.served) == 2
    # 1 s for the outage, 4 s for the other replica, whatever came first for the first one
    assert run.replica_seconds <= 2 * run.ended - 5.0


def test_a_replica_is_back_before_what_comes_after_its_return() -> None:
    # That it will be back is known only when it has drained, at 3, and the next moment from outside is at 20.
    trace = [request(0.0, (2, 8)), request(20.0, (4, 8))]
    run = serve(trace, replicas=1, incidents=[RollingRestart(at=1.0, seconds=2.0)])
    assert [each.ttft for each in run.served] == [1.0, 1.0]


def test_late_reports_change_what_the_router_sees() -> None:
    # Both replicas are idle at 20, and at once the router knows; a report of a minute leaves one looking busy.
    trace = [request(0.0, (2, 8)), request(0.1, (4, 8)), request(0.2, (6, 8)), request(20.0, (8, 8))]
    placed = {
        delay: [
            each.replica
            for seed in range(8)
            for each in serve(trace, policy="least-running", report_delay=delay, seed=seed).served
            if each.at == 20.0
        ]
        for delay in (0.0, 60.0)
    }
    crowded = [
        sorted(
            each.replica for each in serve(trace, policy="least-running", seed=seed).served if each.at < 1
        )[1]
        for seed in range(8)
    ]
    assert placed[60.0] == [1 - each for each in crowded]
    assert placed[0.0] != placed[60.0]


def test_reports_of_a_life_that_is_over_change_nothing() -> None:
    # One replica has two of the first three requests, and all that is reported of them comes after both have restarted.
    early = [request(0.1 * place, (2 * place, 8)) for place in range(3)]
    late = [request(40.0, (10, 8)), request(41.0, (12, 8))]
    outage = Outage(at=15.0, seconds=5.0, replicas=(0, 1))
    for seed in range(8):
        run = serve([*early, *late], policy="least-running", report_delay=25.0, incidents=[outage], seed=seed)
        assert len({each.replica for each in run.served if each.at >= 40}) == 2


def test_requests_that_never_fit_are_refused_and_counted() -> None:
    run = serve([request(0.0, (2, 500)), request(1.0, (4, 8))], replicas=1)
    assert ([each.at for each in run.served], run.refused) == ([1.0], {"PromptTooLongError": 1})
    assert run.sent == 2


def test_an_outage_of_a_replica_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadValueError, match="fail: there is no replica 2: they are numbered 0 to 1"):
        serve([request(0.0, (2, 8))], incidents=[Outage(at=1.0, seconds=1.0, replicas=(2,))])


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(BadValueError, match="policy: must be one of round-robin"):
        Cluster(Scenario(policy="best", replicas=1), make_engine, random.Random(0))
