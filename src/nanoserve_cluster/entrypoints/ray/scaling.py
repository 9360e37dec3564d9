"""How many replicas the load wants: the policy of Ray's autoscaler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

FULL: Final = 0.8
"""The share of a replica's capacity that is to be used."""
Stats = Mapping[str, float]


def wanted_replicas(replicas: int, *, running: float, waiting: float, rows: float) -> int:
    """As many as hold all requests that run or wait, each filled to `FULL`.

    Args:
        replicas: that there are; the other numbers are their sums.
        running: requests that are computed.
        waiting: those in queues.
        rows: the most that could run. Where some wait although there are rows, memory is full, and what runs is all that fits.
    """
    capacity = min(rows, running) if waiting > 0 and running > 0 else rows
    if not replicas or not capacity:
        return max(replicas, 1)
    return max(1, math.ceil((running + waiting) / (FULL * capacity / replicas)))


def scale_by_queue(context: Any) -> tuple[int, dict[str, Any]]:
    """Ray's autoscaling policy, from what replicas tell in `record_autoscaling_stats`; Ray keeps the bounds."""
    metrics = context.aggregated_metrics or {}
    running, waiting, rows = (sum(metrics.get(name, {}).values()) for name in ("running", "waiting", "rows"))
    reported = len(metrics.get("rows", {}))
    if not reported:
        return context.target_num_replicas, {}
    return wanted_replicas(reported, running=running, waiting=waiting, rows=rows), {}
