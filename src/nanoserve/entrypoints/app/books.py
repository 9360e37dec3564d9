"""The service's own books: how long everything took, per class of requests, and who was turned away.

How many sequences were accepted and how they ended is the engine client's to say (`EngineState`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from nanoserve.entrypoints.app.histogram import Histogram, Recent
from nanoserve.ports.engine_facts import EngineState

_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
_GAPS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0),
)
_TOKENS: Final = tuple(float(2**power) for power in range(18))


class Timings:
    """Distributions over ended sequences; those of one token's wait and of one step's size over tokens and steps."""

    def __init__(self) -> None:
        self.first_token = Histogram(_SECONDS)
        self.inter_token = Histogram(_GAPS)
        self.whole = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.prefill = Histogram(_SECONDS)
        self.decode = Histogram(_SECONDS)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generated_tokens = Histogram(_TOKENS)
        self.step_tokens = Histogram(_TOKENS)
        self.recent_first_token = Recent(self.first_token)
        self.recent_inter_token = Recent(self.inter_token)
        self._seen = (0, 0)

    def mark(self, now: float) -> None:
        """Let what is recent go on to this reading of the clock."""
        self.recent_first_token.mark(now)
        self.recent_inter_token.mark(now)

    def observe_steps(self, state: EngineState) -> None:
        """Steps since the last look count with their mean size."""
        steps, tokens = state.steps, state.prompt_tokens + state.generated_tokens
        new_steps, new_tokens = steps - self._seen[0], tokens - self._seen[1]
        if new_steps > 0:
            self.step_tokens.observe(max(new_tokens, 0) / new_steps, new_steps)
        self._seen = (steps, tokens)


@attrs.define(eq=False)
class Books:
    """What the server counts by itself.

    Attributes:
        accepted: sequences handed to the engine, by request class; `living` those that have not ended.
        rejected: requests turned away at the door, by reason.
        disconnected: clients that hung up before their answer was complete.
    """

    accepted: Counter[str] = attrs.field(factory=Counter)
    living: Counter[str] = attrs.field(factory=Counter)
    rejected: Counter[str] = attrs.field(factory=Counter)
    disconnected: int = 0
    timings: Timings = attrs.field(factory=Timings)

    def accept(self, request_class: str, sequences: int) -> None:
        """Sequences were handed to the engine."""
        self.accepted[request_class] += sequences
        self.living[request_class] += sequences

    def finish(self, request_class: str, sequences: int) -> None:
        """Accepted sequences ended."""
        self.living[request_class] -= sequences
