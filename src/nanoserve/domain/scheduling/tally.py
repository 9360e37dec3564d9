"""What the scheduler has counted since it was built; a ledger that must balance."""

from __future__ import annotations

import attrs

from nanoserve.ports.request import FinishReason


@attrs.define
class Tally:
    """Counts of sequences, except where the name says tokens or steps.

    At every moment `accepted` equals the finished ones of all reasons plus those running and waiting.
    """

    accepted: int = 0
    finished: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    steps: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
