"""How many prefill tokens a step may carry without making the decoding sequences wait too long.

A step's time is modelled as a decode part plus a price per prefill token; both are learned from the steps themselves.
"""

from __future__ import annotations

_MEMORY = 0.8
"""Weight of the past in the running averages: about the last five observations count."""


class ChunkBudget:
    """Prefill tokens per step under an inter-token bound of `max_itl` seconds.

    `floor` tokens are always allowed, so that prefill goes on however tight the bound.
    """

    def __init__(self, *, max_itl: float, floor: int) -> None:
        self._max_itl = max_itl
        self._floor = floor
        self._decode_seconds: float | None = None
        self._seconds_per_token: float | None = None

    def allowance(self, budget: int, num_decoding: int) -> int:
        """How much of a step's remaining token budget prefill may use beside `num_decoding` decoding rows."""
        if num_decoding == 0 or self._seconds_per_token is None:
            return budget
        seconds = self._max_itl - (self._decode_seconds or 0.0)
        allowed = int(seconds / self._seconds_per_token) if seconds > 0 else 0
        return min(budget, max(self._floor, allowed))

    def observe(self, *, num_prefill: int, num_decoding: int, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        if num_prefill == 0:
            self._decode_seconds = _blend(self._decode_seconds, seconds)
            return
        decode_part = (self._decode_seconds or 0.0) if num_decoding else 0.0
        price = max(seconds - decode_part, 1e-9) / num_prefill
        self._seconds_per_token = _blend(self._seconds_per_token, price)


def _blend(past: float | None, new: float) -> float:
    return new if past is None else _MEMORY * past + (1 - _MEMORY) * new
