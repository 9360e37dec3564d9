"""The machine's monotonic clock."""

from __future__ import annotations

import time


class SystemClock:
    """`ports.Clock` over `time.monotonic`."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back, even when the wall clock is set."""
        return time.monotonic()
