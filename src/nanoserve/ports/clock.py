"""The port to time, so that deadlines and measured step times are testable."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...
