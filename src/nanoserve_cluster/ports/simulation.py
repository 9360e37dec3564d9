"""Simulations as values: requests of a trace, what happens to a cluster, and what came of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

import attrs

from nanoserve_cluster.ports.routing import RandomDraw


class RandomSource(RandomDraw, Protocol):
    """Numbers that are as good as random, for the workload; `random.Random` is one."""

    def expovariate(self, lambd: float) -> float:
        """Exponentially distributed, with mean 1 / lambd."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """The exponential of a normally distributed number."""


@attrs.define
class VirtualClock:
    """A clock that moves when it is moved."""

    time: float = 0.0

    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.time


@attrs.define
class ComputedStep:
    """One step of a simulated device.

    Attributes:
        ended: seconds on the virtual clock.
        decoding: rows that yielded a further token.
        prefilled: seeds of the sequences that yielded their first token, or their next one after a preemption.
    """

    ended: float
    decoding: int
    prefilled: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Outage:
    """Replicas die together at `at`, with all that they were doing, and are back `seconds` later with empty caches."""

    at: float
    seconds: float
    replicas: tuple[int, ...]


@attrs.frozen(kw_only=True)
class RollingRestart:
    """From `at` on all replicas are restarted, `at_once` at a time: each ends what it has, and is away for `seconds`."""

    at: float
    seconds: float
    at_once: int = 1


@attrs.frozen(kw_only=True)
class ScaleUp:
    """So many more replicas, with empty caches, from `at` on."""

    at: float
    replicas: int


Incident = Outage | RollingRestart | ScaleUp


@attrs.frozen(kw_only=True)
class Scenario:
    """One run of a cluster.

    Attributes:
        policy: a name of `domain.routing.policies.POLICIES`.
        replicas: at the beginning, that answer.
        prefill_replicas: more, which compute prompts of which at least `prefill_tokens` are missing where they are decoded.
        handover: seconds per token until what they have computed is there.
        report_delay: seconds until the router learns that a prompt was computed or that a request has ended.
        block_size: of the router's index of prefixes, in tokens.
        index_blocks: that the index keeps of each replica.
        seed: of the router's draws.
        windows: moments for which figures are kept apart: so many seconds each.
    """

    policy: str
    replicas: int
    prefill_replicas: int = 0
    prefill_tokens: int = 1
    handover: float = 0.0
    report_delay: float = 0.0
    block_size: int = 64
    index_blocks: int = 1
    incidents: Sequence[Incident] = ()
    seed: int = 0
    window: float = 10.0


@attrs.frozen(kw_only=True)
class ServedRequest:
    """The outcome of one request.

    Attributes:
        at: when it was sent.
        ttft: seconds to its first token, from the first attempt's sending to the last attempt's token.
        e2e: seconds to its last token.
        prompt_tokens, cached_tokens, output_tokens: counts; cached ones of the last attempt.
        replica: that answered it.
        attempts: 1, and 1 more for every replica that died over it.
    """

    at: float
    ttft: float
    e2e: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    replica: int
    attempts: int

    @property
    def tpot(self) -> float:
        """Seconds per token after the first; 0 if there is none."""
        return (self.e2e - self.ttft) / max(self.output_tokens - 1, 1)


@attrs.define(kw_only=True)
class SimulatedRun:
    """All that a run has yielded; the same scenario, trace and seed give an equal one.

    Attributes:
        served: every request that was answered, in the order in which they ended.
        refused: requests that no replica could ever take, by the reason.
        sent: requests of the trace.
        gaps: how often a further token came after this many seconds, by window and by bucket (`gap_bucket`).
        steps, busy_seconds, replica_seconds: of all replicas together; a replica that is away does not count.
        preemptions: sequences that gave way and were computed again.
        ended: when the last request was answered, in seconds.
    """

    scenario: Scenario
    served: list[ServedRequest] = attrs.field(factory=list)
    refused: Counter[str] = attrs.field(factory=Counter)
    sent: int = 0
    gaps: defaultdict[int, Counter[int]] = attrs.field(factory=lambda: defaultdict(Counter))
    steps: int = 0
    busy_seconds: float = 0.0
    replica_seconds: float = 0.0
    preemptions: int = 0
    ended: float = 0.0


@attrs.frozen(kw_only=True)
class Spread:
    """A figure over many requests or tokens, in seconds; all 0 if there are none."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@attrs.frozen(kw_only=True)
class RunFigures:
    """The result of a run, or of a part of it.

    Attributes:
        answered: requests.
        ttft: to the first token; `itl` between two tokens of an answer; `e2e` of the whole answer.
        hit_share: of the prompts' tokens, those that were found in a cache.
        good_share: of the answered requests, those that kept the objectives.
        request_rate, goodput, token_rate: answered requests, good ones and tokens generated, per second.
    """

    answered: int
    ttft: Spread
    itl: Spread
    e2e: Spread
    hit_share: float
    good_share: float
    request_rate: float
    goodput: float
    token_rate: float
