"""The books of a scheduler as a `Snapshot`, read from the books themselves."""

from __future__ import annotations

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.scheduling.sequence_table import num_planned
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.trace import Snapshot, TracedSequence


def read_snapshot(scheduler: Scheduler, *, at: float) -> Snapshot:
    """The books between two turns; `at` is in seconds since the trace began."""
    alive = scheduler.table.alive
    counters, prefixes = scheduler.counters, scheduler.cache.statistics
    return Snapshot(
        at=at,
        step=scheduler.step,
        sequences=tuple(_traced(each, scheduler) for each in sorted(alive, key=lambda each: each.key)),
        findable=tuple(pool.findable for pool in scheduler.cache.allocators),
        preemptions=counters.preemptions,
        finished={reason.value: count for reason, count in counters.finished.items() if count},
        generated_tokens=counters.generated_tokens,
        prefix_queries=prefixes.queried_tokens,
        prefix_hits=prefixes.hit_tokens,
    )


def _traced(sequence: Sequence, scheduler: Scheduler) -> TracedSequence:
    is_running = sequence.phase is Phase.RUNNING
    return TracedSequence(
        key=sequence.key,
        request_id=sequence.request.request_id,
        index=sequence.index,
        num_prompt_tokens=sequence.num_prompt_tokens,
        max_total_tokens=sequence.max_total_tokens,
        phase=sequence.phase.value,
        row=sequence.row,
        num_cached_tokens=sequence.num_cached_tokens,
        num_scheduled_tokens=num_planned(sequence, scheduler.step) if is_running else 0,
        num_shared_blocks=sequence.num_shared_blocks,
        tables=scheduler.cache.traced_tables(sequence),
        states=scheduler.cache.states.of(sequence),
    )
