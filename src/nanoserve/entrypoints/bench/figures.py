"""Numbers of several runs: medians with the least and the most, and percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import attrs


@attrs.frozen
class RunSpread:
    """The median of several runs, the least and the most."""

    median: float
    least: float
    most: float


def spread_of(values: Iterable[float]) -> RunSpread:
    """Of at least one value."""
    listed = list(values)
    return RunSpread(statistics.median(listed), min(listed), max(listed))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value that at least this fraction of the values does not exceed; NaN of none."""
    if not values:
        return float("nan")
    ranked = sorted(values)
    return ranked[max(math.ceil(fraction * len(ranked)), 1) - 1]
