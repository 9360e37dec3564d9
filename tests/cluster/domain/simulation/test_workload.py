from __future__ import annotations

import itertools
import random
from collections import Counter

import attrs
import pytest

from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.simulation.workload import WorkloadShape, draw_trace

SHAPE = WorkloadShape(rate=20.0, duration=200.0)


def test_a_trace_has_the_rate_and_the_lengths_that_were_asked_for() -> None:
    trace = draw_trace(SHAPE, random.Random(0))
    assert len(trace) == pytest.approx(4000, rel=0.1)
    assert sum(each.output_tokens for each in trace) / len(trace) == pytest.approx(250, rel=0.1)
    assert [each.at for each in trace] == sorted(each.at for each in trace)
    assert 0 <= trace[0].at < trace[-1].at < 200
    first_minute = sum(each.at < 60 for each in trace)
    assert first_minute == pytest.approx(0.3 * len(trace), rel=0.15)


def test_a_turn_opens_with_everything_before_it() -> None:
    by_conversation: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    for each in draw_trace(SHAPE, random.Random(0)):
        by_conversation.setdefault(each.affinity, []).append(each.prompt)
    turns = 0
    for prompts in by_conversation.values():
        for before, after in itertools.pairwise(prompts):
            assert after[: len(before)] == before
            question, answer = before[-1], after[len(before)]
            assert answer[0] == question[0] + 1
            turns += 1
    assert turns > 1000


def test_tenants_follow_zipf_and_one_can_become_hot() -> None:
    shape = attrs.evolve(SHAPE, hot_from=100.0, hot_share=0.6)
    seen: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
    for each in draw_trace(shape, random.Random(0)):
        if len(each.prompt) == 2:
            seen[each.at >= 100][each.prompt[0][0]] += 1
    # 40 tenants with exponent 1: the first has 1 / H(40) = 23%
    assert seen[False][0] / seen[False].total() == pytest.approx(0.23, abs=0.08)
    assert seen[True][0] / seen[True].total() == pytest.approx(0.6 + 0.4 * 0.23, abs=0.08)


def test_bursts_have_more() -> None:
    shape = attrs.evolve(SHAPE, burst=5.0, turns=1.0)
    trace = draw_trace(shape, random.Random(0))
    inside = sum(60 <= each.at < 80 for each in trace)
    before = sum(30 <= each.at < 50 for each in trace)
    assert inside / before == pytest.approx(5.0, rel=0.25)


@pytest.mark.parametrize(
    ("name", "value"), [("rate", 0.0), ("turns", 0.5), ("hot_share", 1.5), ("tenants", 0)]
)
def test_a_shape_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(BadValueError, match=name):
        WorkloadShape(**attrs.asdict(SHAPE) | {name: value})
