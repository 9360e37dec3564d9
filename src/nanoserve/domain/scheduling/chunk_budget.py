"""The number of prefill tokens of a step that keeps the gaps of decoding sequences short."""

from __future__ import annotations


class ChunkBudget:
    """Prefill tokens per step under an inter-token bound of `max_itl` seconds.

    The first allowance follows from the separate times of decoding and of prompts. Then a step that took too long makes the
    next ones smaller, and one that was nearly full and took less makes them larger, so what it takes beside its tokens need not be
    known. `floor` tokens are always allowed, so that prefill goes on however tight the bound.
    """

    def __init__(self, *, max_itl: float, floor: int) -> None:
        self._max_itl, self._floor = max_itl, floor
        self._decode_seconds = 0.0
        self._seconds_per_token: float | None = None
        self._allowed: float | None = None

    def allowance(self, budget: int, num_decoding: int) -> int:
        """The part of a step's remaining token budget that prefill may use beside `num_decoding` decoding rows."""
        allowed = self._allowed
        if allowed is None and self._seconds_per_token is not None:
            allowed = (self._max_itl - self._decode_seconds) / self._seconds_per_token
        return budget if num_decoding == 0 or allowed is None else min(budget, max(self._floor, int(allowed)))

    def observe(self, *, num_prefill: int, num_decoding: int, seconds: float) -> None:
        """Learn from a step that took `seconds`; others may have been planned before it ended."""
        seconds = max(seconds, 1e-9)
        if num_prefill == 0:
            self._decode_seconds = seconds
        elif num_decoding == 0:
            self._seconds_per_token = seconds / num_prefill
        else:
            change = min(max(self._max_itl / seconds, 0.5), 2.0)
            wanted = max(num_prefill * change, float(self._floor))
            if self._allowed is None:
                self._allowed = wanted
            elif change < 1:
                self._allowed = min(self._allowed, wanted)
            elif num_prefill >= 0.75 * self._allowed:  # smaller steps do not show what more would take
                self._allowed = max(self._allowed, wanted)
