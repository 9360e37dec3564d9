"""`nanoserve simulate`, once its settings are read: the trace, the cluster, one run for each size and policy, and the report."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.report import check_plot, check_writable, doing, head, write_report
from nanoserve.entrypoints.bench.serving.request_files import read_requests
from nanoserve.entrypoints.compose.bootstrap import find_spec
from nanoserve.entrypoints.compose.choices import choose_sizes
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.routing.policies import POLICIES
from nanoserve_cluster.domain.simulation.summary import JUDGED, by_window, summarise
from nanoserve_cluster.domain.simulation.workload import WorkloadShape
from nanoserve_cluster.entrypoints.simulate.assembly import (
    MANY_TOKENS,
    ReplicaShape,
    draw_load,
    draw_requests,
    offered_load,
    simulate,
)
from nanoserve_cluster.entrypoints.simulate.calibration import LIMITS, MeasuredReplica, read_measured
from nanoserve_cluster.entrypoints.simulate.hardware import GPUS, check_simulated, kv_blocks, step_cost
from nanoserve_cluster.entrypoints.simulate.results import SimulatedCase, draw_windows, show_cases
from nanoserve_cluster.entrypoints.simulate.settings import ClusterSettings, TrafficSettings
from nanoserve_cluster.ports.simulation import Incident, Outage, RollingRestart, ScaleUp, Scenario

DEFAULT_MODEL: Final = "shape:llama-3.1-8b"
DEFAULT_LOAD: Final = 0.8
DEFAULT_DURATION: Final = 300.0
BLOCK_SIZE: Final = 64
"""The block size of simulated caches by default: small blocks take longer and more memory, and give equal results."""
WINDOWS: Final = 60


def run_simulation(configuration: Configuration, *, json_file: str | None, plot_file: str | None) -> None:
    """Simulate, print, and write the files; raises whatever goes wrong."""
    traffic, cluster = configuration.part(TrafficSettings), configuration.part(ClusterSettings)
    policies = _choose_policies(cluster)
    objectives = _choose_objectives(configuration)
    check_writable(json_file)
    check_plot(plot_file)
    settings = attrs.evolve(
        configuration.engine, **{"block_size": BLOCK_SIZE} | configuration.given(["block_size"])
    )
    replica, name = _choose_replica(settings, cluster)
    if settings.max_itl_ms is not None:
        replica = attrs.evolve(replica, max_itl=settings.max_itl_ms / 1000)
    seed = configuration.sampling.seed or 0
    cases = []
    for count in sorted(set(cluster.replicas)):
        trace = _choose_trace(traffic, replica, count + cluster.prefill_replicas, seed)
        for policy in policies:
            scenario = Scenario(
                policy=policy,
                replicas=count,
                prefill_replicas=cluster.prefill_replicas,
                prefill_tokens=cluster.prefill_tokens,
                handover=1 / cluster.handover_rate,
                report_delay=cluster.report_delay_ms / 1000,
                block_size=replica.sizes.block_size,
                index_blocks=replica.sizes.num_kv_blocks,
                incidents=_choose_incidents(cluster, count),
                seed=seed,
                window=float(max(math.ceil(trace[-1].at / WINDOWS), 1)),
            )
            cases.append(_run_case(scenario, trace, replica, objectives))
    show_cases(name, cases, objectives)
    if plot_file is not None:
        draw_windows(plot_file, name, cases)
    write_report(
        json_file,
        {
            **head("simulate"),
            "replica": attrs.asdict(replica),
            "traffic": attrs.asdict(traffic),
            "cluster": attrs.asdict(cluster),
            "objectives": objectives,
            "runs": [case.record() for case in cases],
        },
    )


def _run_case(
    scenario: Scenario, trace: Sequence[TracedRequest], replica: ReplicaShape, objectives: Mapping[str, float]
) -> SimulatedCase:
    began = time.process_time()
    with doing(f"{scenario.replicas} replicas, {scenario.policy}"):
        run = simulate(scenario, trace, replica)
    return SimulatedCase(
        run=run,
        trace=trace,
        figures=summarise(run, objectives),
        windows=by_window(run, objectives),
        offered=offered_load(trace, replica, scenario.replicas + scenario.prefill_replicas),
        seconds=time.process_time() - began,
    )


def _choose_policies(cluster: ClusterSettings) -> Sequence[str]:
    if cluster.routing == ("all",):
        return tuple(POLICIES)
    for each in cluster.routing:
        if each not in POLICIES:
            raise BadValueError("routing", f"must be of {', '.join(POLICIES)}, or all; got {each!r}")
    return tuple(dict.fromkeys(cluster.routing))


def _choose_objectives(configuration: Configuration) -> dict[str, float]:
    given = dict(configuration.serve_bench.slo)
    for name in given:
        if name not in JUDGED:
            message = (
                f"of a simulation bounds {', '.join(JUDGED)}, which are known of each request; got {name}"
            )
            raise BadValueError("slo", message)
    return {name: most / 1000 for name, most in given.items()}


def _choose_replica(settings: EngineSettings, cluster: ClusterSettings) -> tuple[ReplicaShape, str]:
    """The description of a replica, and its name."""
    if cluster.cost is not None:
        measured = read_measured(cluster.cost)
        return _measured_replica(settings, measured), f"{measured.model} on {measured.device}, {cluster.cost}"
    if cluster.gpu.lower() not in GPUS:
        message = f"must be one of {', '.join(GPUS)}, got {cluster.gpu!r}; of another one record a step log, see nanoserve bench calibrate"
        raise BadValueError("gpu", message)
    model = settings.model or DEFAULT_MODEL
    spec, _ = find_spec(attrs.evolve(settings, model=model))
    check_simulated(spec)
    gpu, count = GPUS[cluster.gpu.lower()], cluster.gpus_per_replica
    sizes = choose_sizes(settings, spec, "cuda", int(gpu.memory * 1e9))
    blocks = settings.num_kv_blocks or kv_blocks(spec, gpu, count, sizes.block_size)
    sizes = attrs.evolve(sizes, vocab_size=MANY_TOKENS, num_blocks=(blocks,))
    shape = ReplicaShape(cost=step_cost(spec, gpu, count), sizes=sizes, depth=settings.depth or 2)
    return shape, f"{model} on {count} x {cluster.gpu}"


def _measured_replica(settings: EngineSettings, measured: MeasuredReplica) -> ReplicaShape:
    tokens = measured.num_blocks * measured.block_size
    given: dict[str, Any] = {name: value for name in LIMITS if (value := getattr(settings, name)) is not None}
    sizes = EngineSizes(
        vocab_size=MANY_TOKENS,
        block_size=settings.block_size,
        num_blocks=(settings.num_kv_blocks or max(tokens // settings.block_size, 1),),
        **{name: getattr(measured, name) for name in LIMITS} | given,
    )
    depth = settings.depth or (1 if measured.device == "cpu" else 2)
    return ReplicaShape(cost=measured.cost, sizes=sizes, depth=depth)


def _choose_trace(
    traffic: TrafficSettings, replica: ReplicaShape, count: int, seed: int
) -> Sequence[TracedRequest]:
    """The requests; a drawn trace offers a rate, or a load to so many replicas."""
    if traffic.requests is not None:
        for name in ("rate", "load", "hot_tenant"):
            if getattr(traffic, name) is not None:
                raise BadValueError(name, "is for drawn requests; a file of --requests has its own times")
        found = read_requests(traffic.requests)
        if traffic.duration is not None:
            found = [each for each in found if each.at < traffic.duration]
        return found
    if traffic.rate is not None and traffic.load is not None:
        raise BadValueError("load", "and --rate say the same thing: give one of them")
    shape = _workload(traffic)
    if traffic.rate is not None:
        drawn = draw_requests(shape, seed)
    else:
        drawn = draw_load(shape, replica, count, traffic.load or DEFAULT_LOAD, seed=seed)
    if not drawn:
        raise BadValueError(
            "rate", f"draws no request in {shape.duration:g} s; raise it, or --load or --duration"
        )
    return drawn


def _workload(traffic: TrafficSettings) -> WorkloadShape:
    names = ("tenants", "system_tokens", "user_tokens", "answer_tokens", "turns", "think_seconds", "burst")
    share, since = traffic.hot_tenant or (0.0, math.inf)
    return WorkloadShape(
        rate=traffic.rate or 1.0,
        duration=traffic.duration or DEFAULT_DURATION,
        hot_share=share,
        hot_from=since,
        **{name: getattr(traffic, name) for name in names},
    )


def _choose_incidents(cluster: ClusterSettings, count: int) -> list[Incident]:
    incidents: list[Incident] = [ScaleUp(at=at, replicas=more) for at, more in cluster.scale_up]
    for what, number, at, seconds in cluster.fail:
        if what == "zone" and not number < cluster.zones:
            raise BadValueError(
                "fail", f"there is no zone {number}: they are numbered 0 to {cluster.zones - 1}"
            )
        zone = tuple(range(number, count, cluster.zones))
        incidents.append(Outage(at=at, seconds=seconds, replicas=zone if what == "zone" else (number,)))
    if cluster.rolling_restart is not None:
        at, seconds, at_once = cluster.rolling_restart
        incidents.append(RollingRestart(at=at, seconds=seconds, at_once=at_once))
    return incidents
