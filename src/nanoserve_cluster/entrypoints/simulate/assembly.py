"""Puts simulated clusters together: engines as they are served with, over the runner that only counts time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.model_spec import CacheGroup
from nanoserve_cluster.adapters.cost_runner import CostRunner
from nanoserve_cluster.adapters.request_files import read_requests
from nanoserve_cluster.domain.routing.policies import POLICIES
from nanoserve_cluster.domain.simulation.cluster import Cluster
from nanoserve_cluster.domain.simulation.fitting import FittedCost, fit_cost
from nanoserve_cluster.domain.simulation.observed_steps import observed_steps
from nanoserve_cluster.domain.simulation.summary import JUDGED, by_window, summarise
from nanoserve_cluster.domain.simulation.workload import WorkloadShape, draw_trace
from nanoserve_cluster.ports.simulation import (
    Scenario,
    SimulatedEngine,
    SimulatedRun,
    TracedRequest,
    VirtualClock,
)
from nanoserve_cluster.ports.step_cost import StepCost

__all__ = [
    "JUDGED",
    "ROUTER_POLICIES",
    "FittedCost",
    "ReplicaShape",
    "WorkloadShape",
    "by_window",
    "draw_requests",
    "fit_cost",
    "observed_steps",
    "read_requests",
    "simulate",
    "summarise",
]

ROUTER_POLICIES: Final = tuple(POLICIES)
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
