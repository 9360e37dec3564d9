"""A cluster small enough to compute by hand: steps cost a second, and a tenth for each token beyond the tenth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.trace import TraceRecord
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.simulation.cluster import Cluster
from nanoserve_cluster.domain.simulation.cost_runner import CostRunner
from nanoserve_cluster.domain.simulation.replica import SimulatedEngine
from nanoserve_cluster.ports.simulation import Scenario, SimulatedRun, VirtualClock
from nanoserve_cluster.ports.step_cost import StepCost

COST = StepCost(weights=1.0, token=0.1)
BLOCK = 4
TRUE = StepCost(fixed=0.004, weights=0.016, token=0.001, row=2e-4, context=5e-6, pair=4e-6)


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
    return SimulatedEngine(engine, runner, clock, settings["max_model_len"], cost.least)


def request(at: float, *prompt: tuple[int, int], answer: int = 3, affinity: int = 0) -> TracedRequest:
    return TracedRequest(at=at, prompt=prompt, output_tokens=answer, affinity=affinity)


def serve(
    trace: Sequence[TracedRequest], *, replicas: int = 2, policy: str = "round-robin", **scenario: Any
) -> SimulatedRun:
    settings: dict[str, Any] = {"block_size": BLOCK, "index_blocks": 60, "window": 5.0} | scenario
    planned = Scenario(policy=policy, replicas=replicas, **settings)
    return Cluster(planned, make_engine, random.Random(planned.seed)).run(trace)


def recorded(depth: int, cost: StepCost = TRUE) -> list[TraceRecord]:
    """The step log of an engine under load that rests now and then, over a device of known cost."""
    made = make_engine(cost, depth=depth, max_num_seqs=12, max_num_batched_tokens=128, num_blocks=400)
    draw = random.Random(5)
    recorder = made.engine.record()
    records: list[TraceRecord] = [recorder.snapshot()]
    waits = 0
    for number in range(60):
        sampling = SamplingParams(max_tokens=draw.randint(2, 40), ignore_eos=True, detokenize=False)
        prompt = tuple(draw.choices(range(99), k=draw.randint(1, 150)))
        made.engine.add(Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        for _ in range(draw.randint(0, 12)):
            made.engine.turn()
        if number % 20 == 19:
            while made.engine.has_work:
                made.engine.turn()
            made.clock.time += 50.0
            waits += 1
        records += recorder.take()
    assert waits == 3
    return records
