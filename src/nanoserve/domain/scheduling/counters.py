"""The counts of one scheduler."""

from __future__ import annotations

import attrs

from nanoserve.ports.request import FinishReason
from nanoserve.ports.step import StepResult


@attrs.define
class Counters:
    """Counts of sequences, except where the name says requests, tokens, blocks or steps, from clock reading `since` on.

    At every moment `accepted` equals the finished ones of all reasons plus those running and waiting.
    """

    since: float = 0.0
    accepted: int = 0
    finished: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    finished_requests: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    late_masks: int = 0
    steps: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    drafted_rows: int = 0
    leaked_blocks: int = 0

    def note_drafts(self, result: StepResult) -> None:
        """Count a step's drafts, and how many were right."""
        self.draft_tokens += sum(result.drafts)
        self.drafted_rows += sum(map(bool, result.drafts))
        if result.counts:
            self.accepted_tokens += len(result.token_ids) - len(result.counts) + result.counts.count(0)
