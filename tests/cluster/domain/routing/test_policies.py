from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cluster.domain.routing.policies import LOAD_FACTOR, POLICIES, Policy
from nanoserve_cluster.ports.routing import ReplicaView, RoutedRequest

LOADS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), min_size=1, max_size=8)


def views(*loads: tuple[int, int]) -> list[ReplicaView]:
    """Replicas whose numbers are not their places, as after one has left."""
    return [ReplicaView(10 + place, *load) for place, load in enumerate(loads)]


def asked(number: int = 0, tokens: int = 1000, affinity: int = 7, **cached: int) -> RoutedRequest:
    known = {int(name[1:]): count for name, count in cached.items()}
    return RoutedRequest(number=number, num_tokens=tokens, affinity=affinity, cached_tokens=known)


def chosen(policy: str, seen: list[ReplicaView], request: RoutedRequest, seed: int = 0) -> int:
    return POLICIES[policy](seen, request, random.Random(seed)).replica


def test_round_robin_takes_one_after_the_other() -> None:
    seen = views((9, 0), (0, 0), (0, 0))
    assert [chosen("round-robin", seen, asked(number)) for number in range(4)] == [10, 11, 12, 10]


@pytest.mark.parametrize(
    ("policy", "loads", "cached", "wanted"),
    [
        ("least-running", [(2, 0), (1, 9000)], {"r10": 999}, 11),
        ("longest-prefix", [(9, 9000), (0, 0), (0, 0)], {"r10": 999, "r11": 998}, 10),
        ("longest-prefix", [(2, 0), (1, 0), (0, 0)], {"r10": 64, "r11": 64}, 11),
        # 1000 * 2 against 200 * 9, and against 200 * 11
        ("lmetric", [(1, 0), (8, 0)], {"r11": 800}, 11),
        ("lmetric", [(1, 0), (10, 0)], {"r11": 800}, 10),
        # tokens that others wait for count as well
        ("lmetric", [(1, 5000), (3, 0)], {}, 11),
    ],
)
def test_what_a_policy_prefers(
    policy: str, loads: list[tuple[int, int]], cached: dict[str, int], wanted: int
) -> None:
    assert chosen(policy, views(*loads), asked(**cached)) == wanted


@pytest.mark.parametrize("policy", ["least-running", "longest-prefix", "lmetric"])
def test_equals_are_drawn_so_that_an_idle_cluster_is_used_evenly(policy: str) -> None:
    draw = random.Random(1)
    counts = Counter(
        POLICIES[policy](views((0, 0), (0, 0), (5, 9)), asked(), draw).replica for _ in range(200)
    )
    assert set(counts) == {10, 11}
    assert min(counts.values()) > 60


@given(LOADS, st.integers(0, 10**6))
def test_a_bounded_hash_overloads_none_and_stays_where_others_leave(
    loads: list[tuple[int, int]], affinity: int
) -> None:
    seen, request = views(*loads), asked(affinity=affinity)
    first = chosen("bounded-hash", seen, request)
    load = {view.replica: view.requests for view in seen}
    assert load[first] < LOAD_FACTOR * (sum(load.values()) + 1) / len(seen)
    idle = [ReplicaView(view.replica) for view in seen]
    home = chosen("bounded-hash", idle, request)
    for gone in idle:
        if gone.replica != home:
            assert chosen("bounded-hash", [each for each in idle if each is not gone], request) == home


@given(st.sampled_from(sorted(POLICIES.items())), LOADS, st.integers(0, 99))
def test_every_policy_chooses_one_of_them_the_same_one_for_a_seed(
    named: tuple[str, Policy], loads: list[tuple[int, int]], seed: int
) -> None:
    name, _ = named
    seen = views(*loads)
    before = [(view.requests, view.pending_tokens) for view in seen]
    found = chosen(name, seen, asked(3, r10=16), seed)
    assert found in {view.replica for view in seen}
    assert found == chosen(name, seen, asked(3, r10=16), seed)
    assert before == [(view.requests, view.pending_tokens) for view in seen]


def test_a_bounded_hash_passes_over_a_replica_at_its_bound() -> None:
    request = asked(affinity=3)
    home = chosen("bounded-hash", views((0, 0), (0, 0)), request)
    # 5 requests and this one on two replicas: 3.75 each
    crowded = [ReplicaView(each, 4 if each == home else 1) for each in (10, 11)]
    assert chosen("bounded-hash", crowded, request) != home
    crowded[home - 10].requests = 3
    assert chosen("bounded-hash", crowded, request) == home
