"""Where a server stops giving more and only takes longer.

A server's *power* is throughput over response time (Kleinrock 1979). It grows with the load as long as answers come
about as fast as before, and falls as soon as more load only makes the queue longer; its maximum is the knee.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.serving.level import Level

GOOD_ENOUGH: Final = 0.9
"""The fraction of requests that must keep the objectives."""


@attrs.frozen(kw_only=True)
class Knee:
    """What a sweep found; places in the list of its levels.

    Attributes:
        at: the level with the greatest power; None where no level has an answer.
        is_last: it is the heaviest load that was tried, so the knee may lie beyond.
        best_within_slo: the heaviest load at which nine of ten requests keep the objectives.
    """

    at: int | None
    is_last: bool
    best_within_slo: int | None


def find_knee(levels: Sequence[Level]) -> Knee:
    """Of levels in the order of their loads, lightest first."""
    powers = [level.steady_tok_s / level.e2e.p50 if level.completed else 0.0 for level in levels]
    most = max(powers, default=0.0)
    at = powers.index(most) if most > 0 else None
    good = [place for place, level in enumerate(levels) if (level.good or 0.0) >= GOOD_ENOUGH]
    return Knee(
        at=at, is_last=at is not None and at == len(levels) - 1, best_within_slo=max(good, default=None)
    )
