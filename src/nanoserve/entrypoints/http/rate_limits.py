"""Requests per minute for each key: a token bucket that holds one minute's worth."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanoserve.entrypoints.http.errors import RequestError
from nanoserve.entrypoints.http.keys import Key


class RateLimits:
    """One bucket per key, full at first; keys are few and known, so the buckets are too."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def spend(self, key: Key) -> None:
        """Take one request out of the key's bucket; raises `RequestError` (429) where it is empty."""
        if key.rate_limit is None:
            return
        now, capacity, per_second = self._now(), max(1.0, key.rate_limit), key.rate_limit / 60
        held, since = self._buckets.get(key.digest, (capacity, now))
        held = min(capacity, held + (now - since) * per_second)
        if held < 1:
            self._buckets[key.digest] = (held, now)
            raise _limited(key.rate_limit, math.ceil((1 - held) / per_second))
        self._buckets[key.digest] = (held - 1, now)


def _limited(rate_limit: float, seconds: int) -> RequestError:
    return RequestError(
        429,
        f"This key may make {rate_limit:g} requests per minute; try again in {seconds} s.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"retry-after": str(seconds), "x-ratelimit-limit-requests": f"{rate_limit:g}"},
    )
