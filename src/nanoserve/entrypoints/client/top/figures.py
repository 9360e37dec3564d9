"""Numbers as text, bars and sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from nanoserve.entrypoints.client.top.recent import SECONDS
from nanoserve.entrypoints.client.top.status import LatencyQuantiles

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS: Final = "_.:-=+*#"


def per_second(rate: float | None, unit: str) -> str:
    """A rate with its unit; a dash where it is not known yet."""
    if rate is None:
        return f"- {unit}"
    return f"{rate:,.0f} {unit}" if rate >= 1000 else f"{rate:.1f} {unit}"


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where it is not known."""
    return "-" if fraction is None else f"{100 * fraction:.0f}%"


def milliseconds(quantiles: LatencyQuantiles | None) -> str:
    """The median and the 99th percentile."""
    if quantiles is None:
        return "p50 - p99 -"
    return f"p50 {_duration(quantiles.p50)} p99 {_duration(quantiles.p99)}"


def reasons(finished: dict[str, int]) -> str:
    """How many ended for which reason, the most frequent first."""
    ordered = sorted(finished.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} {count:,}" for reason, count in ordered if count) or "none yet"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last minute, the newest at the right end: several seconds per column where there are fewer columns."""
    sparks = _ASCII_SPARKS if ascii_only else _SPARKS
    per_column = -(-SECONDS // max(width, 1))
    columns = [values[max(end - per_column, 0) : end] for end in range(len(values), 0, -per_column)][::-1]
    means = [sum(each) / len(each) for each in columns]
    highest = max(means, default=0)
    if not highest:
        return (sparks[0] * len(means)).rjust(SECONDS // per_column)
    return "".join(sparks[round(each / highest * (len(sparks) - 1))] for each in means).rjust(
        SECONDS // per_column
    )


def bar(parts: Sequence[float], width: int) -> list[int]:
    """Columns for each part of a whole of 1: rounded, and never more than `width` together."""
    ends, total = [0], 0.0
    for part in parts:
        total += part
        ends.append(min(round(total * width), width))
    return [after - before for before, after in pairwise(ends)]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:,.0f} ms"
