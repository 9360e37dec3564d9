"""A cluster small enough to compute by hand: steps cost a second, and a tenth for each token beyond the tenth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from nanoserve.adapters.scripted.cost_runner import CostRunner
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.simulation.cluster import Cluster
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.simulation import (
    Scenario,
    SimulatedEngine,
    SimulatedRun,
    TracedRequest,
    VirtualClock,
)
from nanoserve.ports.step_cost import StepCost

COST = StepCost(weights=1.0, token=0.1)
BLOCK = 4


def make_engine(cost: StepCost = COST, *, depth: int = 2, **limits: Any) -> SimulatedEngine:
    clock = VirtualClock()
    runner = CostRunner(cost, clock)
    settings: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 200}
    settings |= {"vocab_size": 10**6, "block_size": BLOCK, "num_blocks": 60, "watermark": 0.0} | limits
    engine = Engine(
        limits=Limits(**settings),
        cache_groups=(CacheGroup(layers=(0,)),),
        runner=runner,
        clock=clock,
        depth=depth,
        paranoid=True,
    )
    return SimulatedEngine(engine, runner, clock)


def request(at: float, *prompt: tuple[int, int], answer: int = 3, affinity: int = 0) -> TracedRequest:
    return TracedRequest(at=at, prompt=prompt, output_tokens=answer, affinity=affinity)


def serve(
    trace: Sequence[TracedRequest], *, replicas: int = 2, policy: str = "round-robin", **scenario: Any
) -> SimulatedRun:
    settings: dict[str, Any] = {"block_size": BLOCK, "index_blocks": 60, "window": 5.0} | scenario
    planned = Scenario(policy=policy, replicas=replicas, **settings)
    return Cluster(planned, make_engine, random.Random(planned.seed)).run(trace)
