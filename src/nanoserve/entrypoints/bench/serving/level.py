"""What one load showed: throughput, latencies, failures, goodput, doubts; and the knee of several."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.report import percentile
from nanoserve.entrypoints.bench.serving.requests import OK, RequestOutcome
from nanoserve.entrypoints.bench.serving.running import LoadRun, OfferedLoad

LATE_MS: Final = 20.0
"""A schedule was kept where 99 of 100 requests were begun this close to their moments."""
BUSY: Final = 0.85
"""The fraction of a core above which the client, and not the server, may be what is measured."""
KEPT_UP: Final = 0.5
"""The fraction of the offered rate below which a server has not kept up."""
GOOD_ENOUGH: Final = 0.9
"""The fraction of requests that must keep the objectives."""
PER_ANSWER: Final = ("ttft", "tpot", "e2e")
SLOWDOWN: Final = 1.5
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
    """One load and what became of it.

    Attributes:
        results: requests by `RequestOutcome.result`.
        messages: what was said of the first failure of each kind.
        request_s, output_tok_s: complete answers, and their tokens, per second of the whole run.
        steady_tok_s: tokens per second from the first quarter of the schedule to its end: neither the start nor the
            wait for the last answers counts.
        latencies: `ttft`, `tpot` and `e2e` with one value per answer; `itl` over all gaps between pieces of all answers;
            `refusal` of requests that got another status than 200, until their answer was complete; `lateness`, how
            long after their moments requests were begun, which is the client's fault.
        goodput: requests per second that kept every objective, and `good` their fraction of all that were sent.
        queue_grew: answers took longer and longer: the server cannot sustain this load.
    """

    load: OfferedLoad
    run: LoadRun
    results: Mapping[str, int]
    messages: Mapping[str, str]
    request_s: float
    output_tok_s: float
    steady_tok_s: float
    prompt_tokens: float
    output_tokens: float
    latencies: Mapping[str, LatencyDistribution]
    goodput: float | None
    good: float | None
    queue_grew: bool

    @property
    def completed(self) -> int:
        """Complete answers."""
        return self.results.get(OK, 0)

    @property
    def kept_up(self) -> bool:
        """Whether answers came about as fast as requests, so that its figures are a server's and not a queue's."""
        is_behind = self.load.rate is not None and self.request_s < KEPT_UP * self.load.rate
        return bool(self.completed) and not is_behind and not self.queue_grew

    @property
    def client_ceiling(self) -> float:
        """About how many pieces per second this client could read on this machine."""
        return self.run.pieces_s / self.run.busy if self.run.busy else float("inf")

    @property
    def schedule_kept(self) -> bool:
        """Whether nearly all requests were begun at their moments."""
        return self.latencies["lateness"].p99 <= LATE_MS

    @property
    def doubts(self) -> list[str]:
        """Why the figures may be the client's and not the server's."""
        late = f"the schedule was not kept: requests were sent {self.latencies['lateness'].p99:.0f} ms late (p99)"
        busy = (
            f"the client used {self.run.busy:.0%} of a core, of which it has one: it may be the bottleneck, "
            f"at {self.run.pieces_s:,.0f} pieces per second"
        )
        return [late] * (not self.schedule_kept) + [busy] * (self.run.busy > BUSY)

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        nested = ("load", "run", "latencies")
        return {
            **attrs.asdict(self.load),
            **attrs.asdict(self, filter=attrs.filters.exclude(*nested)),
            **self.latencies,
            "requests": len(self.run.outcomes),
            **{name: getattr(self.run, name) for name in ("seconds", "busy", "pieces_s")},
            **{
                name: getattr(self, name) for name in ("kept_up", "schedule_kept", "client_ceiling", "doubts")
            },
            "outcomes": [each.record(self.run.began) for each in self.run.outcomes],
        }


def judge(load: OfferedLoad, run: LoadRun, slo: Mapping[str, float]) -> LoadLevel:
    """Compute all figures of one run; `slo` has milliseconds by latency."""
    done = [each for each in run.outcomes if each.result == OK]
    failed = [each for each in run.outcomes if each.result != OK]
    latencies = [each.latencies for each in done]
    tokens = sum(each.output_tokens for each in done)
    kept = [all(each.get(name, 0.0) <= bound for name, bound in slo.items()) for each in latencies]
    return LoadLevel(
        load=load,
        run=run,
        results=dict(collections.Counter(each.result for each in run.outcomes).most_common()),
        messages={each.result: each.message for each in reversed(failed) if each.message},
        request_s=len(done) / run.seconds,
        output_tok_s=tokens / run.seconds,
        steady_tok_s=_steady_rate(run, done),
        prompt_tokens=_mean([each.prompt_tokens for each in done]),
        output_tokens=_mean([each.output_tokens for each in done]),
        latencies={
            **{name: distribution([each[name] for each in latencies if name in each]) for name in PER_ANSWER},
            "itl": distribution([1e3 * gap for each in done for gap in each.gaps]),
            "refusal": distribution(
                [1e3 * (each.ended - each.started) for each in failed if each.result.isdigit()]
            ),
            "lateness": distribution([1e3 * (each.started - each.scheduled) for each in run.outcomes]),
        },
        goodput=sum(kept) / run.seconds if slo else None,
        good=sum(kept) / len(run.outcomes) if slo else None,
        queue_grew=load.rate is not None and _grows(run, done),
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
    return last > SLOWDOWN * first and last - first > DRIFT * span


@attrs.frozen(kw_only=True)
class LoadKnee:
    """What a sweep found; places in the list of its levels.

    Attributes:
        at: the level with the greatest power of those that the server kept up with; None where it did with none.
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
    powers = [level.steady_tok_s / level.latencies["e2e"].p50 if level.kept_up else 0.0 for level in levels]
    most = max(powers, default=0.0)
    at = powers.index(most) if most > 0 else None
    good = [place for place, level in enumerate(levels) if (level.good or 0.0) >= GOOD_ENOUGH]
    return LoadKnee(
        at=at, is_last=at is not None and at == len(levels) - 1, best_within_slo=max(good, default=None)
    )
