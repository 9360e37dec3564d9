"""How fast and how large a simulation is, and what router policies are worth on drawn traces.

    python -m benchmarks.simulation speed [--replicas 12] [--duration 600] [--load 0.8] [--policy lmetric] [--shape mooncake]
    python -m benchmarks.simulation policies [--replicas 12] [--duration 300] [--seeds 3]

`speed` serves Llama 3.1 70B on pairs of H200s once, and prints steps and replica-seconds per second of processor time, and
the largest memory of the process. Requests are drawn with the lengths of Mooncake's conversations (13,000 tokens in, 330 out, in
blocks of 512) or with those of `nanoserve simulate`, `chat` (3,700 in, 250 out, in blocks of 64). `policies` prints the mean time to the first token of every policy
as a fraction of those of round robin and least running, at 20% and 80% load, and of LMetric with late reports.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import attrs

from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.routing.policies import POLICIES
from nanoserve_cluster.domain.simulation.summary import summarise
from nanoserve_cluster.domain.simulation.workload import WorkloadShape
from nanoserve_cluster.entrypoints.simulate.assembly import ReplicaShape, draw_load, simulate
from nanoserve_cluster.entrypoints.simulate.hardware import GPUS, kv_blocks, step_cost
from nanoserve_cluster.ports.simulation import Scenario, SimulatedRun

BLOCK_SIZE = 64
CHAT = WorkloadShape(rate=1.0, duration=1.0)
MOONCAKE = WorkloadShape(
    rate=1.0, duration=1.0, system_tokens=3000, user_tokens=2500, answer_tokens=340, turns=4.0
)
SHAPES = {"mooncake": (MOONCAKE, 512), "chat": (CHAT, BLOCK_SIZE)}


def make_replica(model: str, gpu: str, count: int, block_size: int = BLOCK_SIZE) -> ReplicaShape:
    """A replica by its data sheet."""
    spec = find_shape(model)
    blocks = kv_blocks(spec, GPUS[gpu], count, block_size)
    sizes = EngineSizes(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=spec.usual_length,
        vocab_size=2**62,
        block_size=block_size,
        num_blocks=(blocks,),
    )
    return ReplicaShape(cost=step_cost(spec, GPUS[gpu], count), sizes=sizes)


def serve(
    trace: list[TracedRequest], replica: ReplicaShape, replicas: int, policy: str, *, delay: float = 0.0
) -> SimulatedRun:
    """One run."""
    scenario = Scenario(
        policy=policy,
        replicas=replicas,
        report_delay=delay,
        block_size=replica.sizes.block_size,
        index_blocks=replica.sizes.num_kv_blocks,
    )
    return simulate(scenario, trace, replica)


def show_speed(replicas: int, duration: float, load: float, policy: str, shape: str) -> None:
    """One run, timed."""
    lengths, block_size = SHAPES[shape]
    replica = make_replica("shape:llama-3.1-70b", "h200", 2, block_size)
    trace = draw_load(attrs.evolve(lengths, duration=duration), replica, replicas, load, seed=0)
    began, clock = time.process_time(), time.monotonic()
    run = serve(trace, replica, replicas, policy)
    seconds, wall = time.process_time() - began, time.monotonic() - clock
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{replicas} replicas, {policy}, {shape}, load {load:g}: {len(trace)} requests in {trace[-1].at:.0f} s, {run.steps:,} steps"
    )
    print(
        f"{seconds:.1f} s of a processor ({wall:.1f} s by the clock), {memory:.2f} GiB: "
        f"{run.steps / seconds:,.0f} steps/s, {run.replica_seconds / seconds:,.0f} replica-seconds/s"
    )


def show_policies(replicas: int, duration: float, seeds: int) -> None:
    """Every policy against round robin and least running; medians over the seeds."""
    for model, gpu, count in (("shape:llama-3.1-70b", "h200", 2), ("shape:llama-3.1-8b", "h100", 1)):
        replica = make_replica(model, gpu, count)
        for load in (0.2, 0.8):
            means: dict[str, list[float]] = {}
            for seed in range(seeds):
                shape = attrs.evolve(CHAT, duration=duration)
                trace = draw_load(shape, replica, replicas, load, seed=seed)
                runs = [(policy, policy, 0.0) for policy in POLICIES]
                if load > 0.5:
                    runs += [(f"lmetric, {delay:g} s late", "lmetric", delay) for delay in (0.1, 1.0)]
                for name, policy, delay in runs:
                    figures = summarise(serve(trace, replica, replicas, policy, delay=delay), {})
                    means.setdefault(name, []).append(figures.ttft.mean)
            print(
                f"{model}, {replicas} replicas of {count} x {gpu}, load {load:g}: mean TTFT, over least running, over round robin"
            )
            for name, values in means.items():
                over = (
                    statistics.median(a / b for a, b in zip(values, means[base], strict=True))
                    for base in ("least-running", "round-robin")
                )
                print(
                    f"  {name:<20} {statistics.median(values) * 1000:8.0f} ms  ",
                    *(f"{each:6.2f}" for each in over),
                )


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "policies"))
    parser.add_argument("--replicas", type=int, default=12)
    parser.add_argument("--duration", type=float, default=300.0)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--shape", default="mooncake", choices=SHAPES)
    parser.add_argument("--policy", default="lmetric", choices=POLICIES)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "speed":
        show_speed(options.replicas, options.duration, options.load, options.policy, options.shape)
    else:
        show_policies(options.replicas, options.duration, options.seeds)


if __name__ == "__main__":
    main()
