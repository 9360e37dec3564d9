"""From a run to its figures: of the whole, and of one window of time after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from nanoserve_cluster.ports.simulation import RunFigures, ServedRequest, SimulatedRun, Spread

_PER_E: Final = 50
"""Buckets of gaps for each factor e: they are 2% wide."""
_SHORTEST: Final = 1e-9
JUDGED: Final = ("ttft", "tpot", "e2e")
"""Figures that objectives may bound, known of each request."""


def gap_bucket(seconds: float) -> int:
    """The bucket that a gap between two tokens is counted in."""
    return round(math.log(max(seconds, _SHORTEST)) * _PER_E)


def summarise(run: SimulatedRun, objectives: Mapping[str, float]) -> RunFigures:
    """The figures of a whole run; `objectives` are seconds, by a name of `JUDGED`."""
    gaps: Counter[int] = Counter()
    for counts in run.gaps.values():
        gaps.update(counts)
    return _figures(run.served, gaps, objectives, run.ended)


def by_window(run: SimulatedRun, objectives: Mapping[str, float]) -> dict[int, RunFigures]:
    """The figures of each window in which something happened: of the requests sent and of the tokens yielded in it."""
    length = run.scenario.window
    sent: dict[int, list[ServedRequest]] = {}
    for each in run.served:
        sent.setdefault(int(each.at // length), []).append(each)
    return {
        window: _figures(sent.get(window, []), run.gaps.get(window, {}), objectives, length)
        for window in sorted({*sent, *run.gaps})
    }


def _figures(
    served: Sequence[ServedRequest], gaps: Mapping[int, int], objectives: Mapping[str, float], seconds: float
) -> RunFigures:
    good = sum(all(getattr(each, name) <= most for name, most in objectives.items()) for each in served)
    prompt_tokens = sum(each.prompt_tokens for each in served)
    seconds = max(seconds, _SHORTEST)
    return RunFigures(
        answered=len(served),
        ttft=_spread([each.ttft for each in served]),
        itl=_bucket_spread(gaps),
        e2e=_spread([each.e2e for each in served]),
        hit_share=sum(each.cached_tokens for each in served) / max(prompt_tokens, 1),
        good_share=good / max(len(served), 1),
        request_rate=len(served) / seconds,
        goodput=good / seconds,
        token_rate=sum(each.output_tokens for each in served) / seconds,
    )


def _spread(values: list[float]) -> Spread:
    if not values:
        return Spread()
    values.sort()
    p50, p90, p99 = (values[math.ceil(share * len(values)) - 1] for share in (0.5, 0.9, 0.99))
    return Spread(mean=math.fsum(values) / len(values), p50=p50, p90=p90, p99=p99)


def _bucket_spread(counts: Mapping[int, int]) -> Spread:
    total = sum(counts.values())
    if not total:
        return Spread()
    ordered = sorted(counts.items())
    mean = math.fsum(math.exp(bucket / _PER_E) * count for bucket, count in ordered) / total
    found, seen, shares = [], 0, [0.5, 0.9, 0.99]
    for bucket, count in ordered:
        seen += count
        while shares and seen >= shares[0] * total:
            found.append(math.exp(bucket / _PER_E))
            shares.pop(0)
    p50, p90, p99 = found
    return Spread(mean=mean, p50=p50, p90=p90, p99=p99)
