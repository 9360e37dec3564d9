"""What one load showed: throughput, latencies, failures, goodput, doubts; and the knee of several."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.measurement import percentile
from nanoserve.entrypoints.bench.serving.requests import OK, RequestOutcome
from nanoserve.entrypoints.bench.serving.running import LoadRun

LATE_MS: Final = 20.0
"""A schedule was kept where 99 of 100 requests were begun this close to their moments."""
BUSY: Final = 0.85
"""The fraction of a core above which the client, and not the server, may be what is measured."""
GOOD_ENOUGH: Final = 0.9
"""The fraction of requests that must keep the objectives."""
GROWTH: Final = 1.5
DRIFT: Final = 0.05
"""How much longer the last third of the requests may take than the first, as a ratio and as a fraction of the run."""


@attrs.frozen(kw_only=True)
class LatencyDistribution:
    """Milliseconds; NaN where there is nothing."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float


@attrs.frozen(kw_only=True)
class LoadLevel:
    """One load.

    Attributes:
        rate: requests per second that were asked for, in an open loop; `concurrency` its clients, in a closed one.
        results: requests by `RequestOutcome.result`.
        messages: what was said of the first failure of each kind.
        request_s, output_tok_s: complete answers, and their tokens, per second of the whole run.
        steady_tok_s: tokens per second from the first quarter of the schedule to its end: neither the start nor the
            wait for the last answers counts.
        itl: over all gaps between pieces of all answers; the others have one value per answer.
        refusal: of requests that got another status than 200, until their answer was complete.
        goodput: requests per second that kept every objective, and `good` their fraction of all that were sent.
        lateness: how long after their moments requests were begun, which is the client's fault.
        queue_grew: answers took longer and longer: this load can not be kept up for ever.
        busy: the fraction of a core that the client needed; `pieces_s` the pieces of text that it read per second.
    """

    rate: float | None
    concurrency: int | None
    requests: int
    results: Mapping[str, int]
    messages: Mapping[str, str]
    seconds: float
    request_s: float
    output_tok_s: float
    steady_tok_s: float
    prompt_tokens: float
    output_tokens: float
    ttft: LatencyDistribution
    itl: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    refusal: LatencyDistribution
    goodput: float | None
    good: float | None
    lateness: LatencyDistribution
    schedule_kept: bool
    queue_grew: bool
    busy: float
    pieces_s: float

    @property
    def load(self) -> str:
        """What was asked of the server."""
        return f"{self.rate:g} req/s" if self.rate is not None else f"{self.concurrency} at once"

    @property
    def completed(self) -> int:
        """Complete answers."""
        return self.results.get(OK, 0)

    @property
    def client_ceiling(self) -> float:
        """About how many pieces per second this client could read on this machine."""
        return self.pieces_s / self.busy if self.busy else float("inf")

    @property
    def doubts(self) -> list[str]:
        """Why the figures may be the client's and not the server's."""
        late = f"the schedule was not kept: requests were sent {self.lateness.p99:.0f} ms late (p99)"
        busy = (
            f"the client used {self.busy:.0%} of a core, of which it has one: it may be the bottleneck, "
            f"at {self.pieces_s:,.0f} pieces per second"
        )
        return [late] * (not self.schedule_kept) + [busy] * (self.busy > BUSY)


def judge(
    run: LoadRun, slo: Mapping[str, float], *, rate: float | None = None, concurrency: int | None = None
) -> LoadLevel:
    """Compute all figures of one run; `slo` has milliseconds by latency."""
    done = [each for each in run.outcomes if each.result == OK]
    failed = [each for each in run.outcomes if each.result != OK]
    latencies = [each.latencies for each in done]
    lateness = distribution([1e3 * (each.started - each.scheduled) for each in run.outcomes])
    tokens = sum(each.output_tokens for each in done)
    kept = [all(each.get(name, 0.0) <= bound for name, bound in slo.items()) for each in latencies]
    return LoadLevel(
        rate=rate,
        concurrency=concurrency,
        requests=len(run.outcomes),
        results=dict(collections.Counter(each.result for each in run.outcomes).most_common()),
        messages={each.result: each.message for each in reversed(failed) if each.message},
        seconds=run.seconds,
        request_s=len(done) / run.seconds,
        output_tok_s=tokens / run.seconds,
        steady_tok_s=_steady_rate(run, done),
        prompt_tokens=_mean([each.prompt_tokens for each in done]),
        output_tokens=_mean([each.output_tokens for each in done]),
        ttft=distribution([each["ttft"] for each in latencies]),
        itl=distribution([1e3 * gap for each in done for gap in each.gaps]),
        tpot=distribution([each["tpot"] for each in latencies if "tpot" in each]),
        e2e=distribution([each["e2e"] for each in latencies]),
        refusal=distribution([1e3 * (each.ended - each.started) for each in failed if each.result.isdigit()]),
        goodput=sum(kept) / run.seconds if slo else None,
        good=sum(kept) / len(run.outcomes) if slo else None,
        lateness=lateness,
        schedule_kept=lateness.p99 <= LATE_MS,
        queue_grew=rate is not None and _grows(run, done),
        busy=run.busy,
        pieces_s=sum(len(each.arrivals) for each in run.outcomes) / run.seconds,
    )


def distribution(values: Sequence[float]) -> LatencyDistribution:
    """Of any number of values."""
    return LatencyDistribution(
        mean=_mean(values),
        p50=percentile(values, 0.50),
        p90=percentile(values, 0.90),
        p99=percentile(values, 0.99),
        most=max(values, default=float("nan")),
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


def _steady_rate(run: LoadRun, done: Sequence[RequestOutcome]) -> float:
    """Of the whole run in a closed loop, which has no schedule."""
    last = max((each.scheduled for each in run.outcomes), default=run.began)
    first = run.began + (last - run.began) / 4
    if last <= first:
        return sum(each.output_tokens for each in done) / run.seconds
    within = sum(
        each.output_tokens * sum(first <= moment <= last for moment in each.arrivals) / len(each.arrivals)
        for each in done
    )
    return within / (last - first)


def _grows(run: LoadRun, done: Sequence[RequestOutcome]) -> bool:
    """Whether the last third took clearly longer than the first, and the more so the longer the run was.

    Where requests come 8% faster than they are served, each waits that fraction of the time since the beginning; a crowd
    that came by chance is gone soon.
    """
    ranked = sorted(done, key=lambda each: each.scheduled)
    third = len(ranked) // 3
    if third < 4:
        return False
    first, last = (
        statistics.median(each.ended - each.scheduled for each in some)
        for some in (ranked[:third], ranked[-third:])
    )
    span = max(each.scheduled for each in run.outcomes) - run.began
    return last > GROWTH * first and last - first > DRIFT * span


@attrs.frozen(kw_only=True)
class LoadKnee:
    """What a sweep found; places in the list of its levels.

    Attributes:
        at: the level with the greatest power; None where no level has an answer.
        is_last: it is the heaviest load that was tried, so the knee may lie beyond.
        best_within_slo: the heaviest load at which nine of ten requests keep the objectives.
    """

    at: int | None
    is_last: bool
    best_within_slo: int | None


def find_knee(levels: Sequence[LoadLevel]) -> LoadKnee:
    """Of levels in the order of their loads, lightest first.

    A server's *power* is throughput over response time (Kleinrock 1979). It grows with the load as long as answers
    come about as fast as before, and falls as soon as more load only makes the queue longer; its maximum is the knee.
    """
    powers = [level.steady_tok_s / level.e2e.p50 if level.completed else 0.0 for level in levels]
    most = max(powers, default=0.0)
    at = powers.index(most) if most > 0 else None
    good = [place for place, level in enumerate(levels) if (level.good or 0.0) >= GOOD_ENOUGH]
    return LoadKnee(
        at=at, is_last=at is not None and at == len(levels) - 1, best_within_slo=max(good, default=None)
    )
