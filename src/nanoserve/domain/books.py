"""The engine's books, added up for whoever watches it. Reading them changes nothing, and costs the steps nothing."""

from __future__ import annotations

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.scheduling.tally import Tally
from nanoserve.domain.sequence import Phase
from nanoserve.ports.engine_link import EngineState


def read_books(scheduler: Scheduler, *, at: float, ready_at: float, leaked_blocks: int = 0) -> EngineState:
    """The books at clock reading `at`, of an engine that has taken requests since `ready_at`.

    Blocks are those of the fullest cache group, scaled to the size of the largest. `leaked_blocks` is the caller's latest count of `count_leaks`.
    """
    tally, prefixes = scheduler.tally, scheduler.cache.statistics
    fullest = min(scheduler.cache.allocators, key=_free_part)
    largest = max(pool.num_blocks for pool in scheduler.cache.allocators)
    running = len(scheduler.seats.running)
    return EngineState(
        at=at,
        last_step=max(scheduler.last_commit, ready_at),
        steps=tally.steps,
        running=running,
        waiting=tally.accepted - sum(tally.finished.values()) - running,
        waiting_tokens=count_waiting_tokens(scheduler),
        accepted=tally.accepted,
        finished={reason.value: count for reason, count in tally.finished.items()},
        preemptions=tally.preemptions,
        prompt_tokens=tally.computed_prompt_tokens,
        generated_tokens=tally.generated_tokens,
        prefix_queries=prefixes.queried_tokens,
        prefix_hits=prefixes.hit_tokens,
        free_blocks=fullest.num_free * largest // fullest.num_blocks,
        cached_blocks=fullest.num_kept * largest // fullest.num_blocks,
        leaked_blocks=leaked_blocks,
    )


def count_waiting_tokens(scheduler: Scheduler) -> int:
    """Prompt tokens of the sequences that wait, preempted ones included; costs a look at every living sequence."""
    return sum(
        sequence.num_prompt_tokens
        for family in scheduler.requests.values()
        for sequence in family
        if sequence.phase in {Phase.WAITING, Phase.PREEMPTED}
    )


def count_leaks(scheduler: Scheduler) -> int:
    """Blocks of all groups that are not free although no table holds them; costs a look at every table entry."""
    pools = enumerate(scheduler.cache.allocators)
    return sum(pool.num_blocks - pool.num_free - len(set(scheduler.holders(group))) for group, pool in pools)


def start_counting(scheduler: Scheduler) -> None:
    """Forget what was counted so far and which prefixes were seen, as after a warm-up; nothing may be alive."""
    assert not scheduler.requests
    scheduler.tally = Tally()
    scheduler.cache.forget_prefixes()
    scheduler.cache.start_counting()


def _free_part(pool: BlockAllocator) -> float:
    return pool.num_free / pool.num_blocks
