"""The ledger: counts of every sequence that was ever submitted, whichever engine computed it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import attrs

from nanoserve.ports.counts import Counts
from nanoserve.ports.engine_facts import EngineState, TierCounts
from nanoserve.ports.request import FinishReason

REFUSED: Final = "refused"
"""The end of sequences that were turned away at the engine's door, beside the values of `FinishReason`."""

ACCEPTED: Final = "accepted"
RUNNING: Final = "running"
GIVEN_UP: Final = "given_up"
_REASONS: Final = (*(reason.value for reason in FinishReason), REFUSED)
LEDGER_NAMES: Final = (ACCEPTED, RUNNING, GIVEN_UP, *_REASONS)
"""The names of the counts of a ledger."""
_COUNTERS: Final = (
    *("steps", "preemptions", "prompt_tokens", "generated_tokens", "drafted_rows", "draft_tokens"),
    *("accepted_tokens", "prefix_queries", "prefix_hits", "grammar_compiles", "grammar_compile_seconds"),
    *("mask_seconds", "late_masks", "late_compiles", "busiest_expert_tokens", "device_wait_seconds"),
)
_BY_LABEL: Final = ("graph_steps", "prefix_lost", "lora_requests", "expert_tokens")
_OF_TIERS: Final = ("stored", "loaded", "evicted", "refused")


@attrs.frozen
class SequenceCounts:
    """A ledger at one moment; `finished` is by reason, and `given_up` counts requests that ended as the cause of deaths."""

    accepted: int
    running: int
    given_up: int
    finished: dict[str, int]

    @property
    def living(self) -> int:
        """Sequences that have not ended."""
        return self.accepted - sum(self.finished.values())

    @property
    def waiting(self) -> int:
        """Sequences that hold no device row: in the engine's queue, preempted, or without an engine at all."""
        return self.living - self.running

    @property
    def answers(self) -> int:
        """Sequences that have ended as their model or their request would have it."""
        return sum(self.finished[each.value] for each in (FinishReason.STOP, FinishReason.LENGTH))


@attrs.frozen
class Ledger:
    """Counts of sequences, kept from the events that the engine sent, so that an engine that dies takes none along.

    `accepted` equals the finished ones of all reasons plus those running and waiting.
    """

    counts: Counts = attrs.field(factory=Counts)

    def read(self) -> SequenceCounts:
        """All of it, as of one moment."""
        counts = self.counts.read(LEDGER_NAMES)
        accepted, running, given_up = (counts.pop(name) for name in (ACCEPTED, RUNNING, GIVEN_UP))
        finished = {reason: count for reason, count in counts.items() if count or reason != REFUSED}
        return SequenceCounts(accepted, running, given_up, finished)

    def add(self, name: str, number: int = 1) -> None:
        """So many more sequences were `ACCEPTED`, hold a device row (`RUNNING`), or have ended for a reason."""
        self.counts.add(name, number)

    def end_all(self) -> int:
        """The process that kept these counts has ended, and its sequences with it; returns how many those were."""
        lost = self.read()
        self.add(RUNNING, -lost.running)
        self.add(FinishReason.ABORT.value, lost.living)
        return lost.living


class Totals:
    """The counts of one engine after another, as if they were one."""

    def __init__(self) -> None:
        self._past: EngineState | None = None
        self._latest: EngineState | None = None

    @property
    def has_work(self) -> bool:
        """True if the running engine had sequences when it sent its newest state."""
        return self._latest is not None and bool(self._latest.running + self._latest.waiting)

    def take(self, state: EngineState) -> None:
        """The running engine's newest state."""
        self._latest = state

    def carry_over(self) -> None:
        """The engine has died: its counts are kept, its sequences are gone."""
        if self._latest is not None:
            self._past, self._latest = self._sum(self._latest), None

    def state(self, ledger: Ledger) -> EngineState | None:
        """Everything so far, with sequences as the ledger has them; None before the first state came."""
        total = self._past if self._latest is None else self._sum(self._latest)
        if total is None:
            return None
        counts = ledger.read()
        living = ("running", "waiting", "accepted", "finished")
        return attrs.evolve(total, **{name: getattr(counts, name) for name in living})

    def _sum(self, state: EngineState) -> EngineState:
        past = self._past
        if past is None:
            return state
        sums: dict[str, Any] = {name: getattr(past, name) + getattr(state, name) for name in _COUNTERS}
        sums |= {name: Counter(getattr(past, name)) + Counter(getattr(state, name)) for name in _BY_LABEL}
        tiers = {name: _added(past.tiers.get(name), tier) for name, tier in state.tiers.items()}
        return attrs.evolve(state, **sums, tiers=tiers)


def _added(past: TierCounts | None, tier: TierCounts) -> TierCounts:
    if past is None:
        return tier
    return attrs.evolve(tier, **{name: getattr(past, name) + getattr(tier, name) for name in _OF_TIERS})
