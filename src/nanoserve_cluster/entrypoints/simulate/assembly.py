"""Puts simulated clusters together: engines as they are served with, over the runner that only counts time, and traces that ask so much of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.simulation.cluster import Cluster
from nanoserve_cluster.domain.simulation.cost_runner import CostRunner
from nanoserve_cluster.domain.simulation.replica import SimulatedEngine
from nanoserve_cluster.domain.simulation.workload import WorkloadShape, draw_trace
from nanoserve_cluster.ports.simulation import Scenario, SimulatedRun, VirtualClock
from nanoserve_cluster.ports.step_cost import StepCost, StepWork

MANY_TOKENS: Final = 2**62
"""A vocabulary in which every piece of a trace is a token."""
_SAMPLE_RATE: Final = 10.0
_SAMPLE_SECONDS: Final = 600.0
_GROUPS: Final = (CacheGroup(layers=(0,)),)
"""One cache group that keeps every token: which layers it stands for is the cost model's business."""


@attrs.frozen(kw_only=True)
class ReplicaShape:
    """The description of one replica; token ids of `sizes` are those of traces, which know no vocabulary."""

    cost: StepCost
    sizes: EngineSizes
    depth: int = 2
    max_itl: float | None = None
    paranoid: bool = False

    def make_engine(self) -> SimulatedEngine:
        """A fresh engine, at time 0 of its own clock."""
        clock = VirtualClock()
        runner = CostRunner(self.cost, clock)
        limits = Limits(**self.sizes.sizes(), max_itl=self.max_itl)
        engine = Engine(
            limits=limits,
            cache_groups=_GROUPS,
            runner=runner,
            clock=clock,
            depth=self.depth,
            paranoid=self.paranoid,
        )
        return SimulatedEngine(engine, runner, clock, limits.max_model_len, self.cost.least)


def draw_requests(shape: WorkloadShape, seed: int) -> list[TracedRequest]:
    """A trace that is drawn; equal for equal seeds."""
    return draw_trace(shape, random.Random(seed))  # noqa: S311 - a simulation wants repeatable numbers


def simulate(scenario: Scenario, trace: Sequence[TracedRequest], replica: ReplicaShape) -> SimulatedRun:
    """Serve a trace; equal arguments give equal runs."""
    draw = random.Random(scenario.seed)  # noqa: S311 - as above
    return Cluster(scenario, replica.make_engine, draw).run(trace)


def offered_load(trace: Sequence[TracedRequest], replica: ReplicaShape, replicas: int) -> float:
    """Seconds of work per replica and second: 1 is all that so many replicas can do without finding anything in a cache.

    Prompts cost what their tokens and attention do in large steps, answers their share of steps with full batches.
    """
    return _work(trace, replica) / replicas / max(trace[-1].at, 1.0)


def draw_load(
    shape: WorkloadShape, replica: ReplicaShape, replicas: int, load: float, *, seed: int
) -> list[TracedRequest]:
    """A trace that offers about this load; the shape's own rate does not count."""
    sample = draw_requests(attrs.evolve(shape, rate=_SAMPLE_RATE, duration=_SAMPLE_SECONDS, burst=1.0), seed)
    rate = load * replicas * len(sample) / _work(sample, replica)
    return draw_requests(attrs.evolve(shape, rate=rate), seed)


def _work(trace: Sequence[TracedRequest], replica: ReplicaShape) -> float:
    """Seconds of one replica's device for all requests."""
    cost, sizes = replica.cost, replica.sizes
    prompts = [each.num_tokens for each in trace]
    answers = [each.output_tokens for each in trace]
    length = sum(prompts) / len(trace) + sum(answers) / len(trace) / 2
    rows = max(1, min(sizes.max_num_seqs, int(sizes.num_kv_blocks * sizes.block_size / length)))
    step = cost.seconds(StepWork(rows, rows, int(rows * length), 0))
    prefill = sum(cost.token * each + cost.pair * each * each / 2 for each in prompts)
    return prefill + sum(answers) * step / rows
