"""How much of what a cluster could do a trace asks for, and traces that ask for so much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve_cluster.entrypoints.simulate.assembly import ReplicaShape, WorkloadShape, draw_requests
from nanoserve_cluster.ports.simulation import TracedRequest
from nanoserve_cluster.ports.step_cost import StepWork

_SAMPLE_RATE: Final = 10.0
_SAMPLE_SECONDS: Final = 600.0


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
