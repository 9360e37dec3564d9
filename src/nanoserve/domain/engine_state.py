"""The state of an engine for its observers, added up from its scheduler, its cache and its runner. Reading changes no step."""

from __future__ import annotations

from nanoserve.domain.invariants import holders
from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Phase
from nanoserve.ports.engine_facts import EngineState, RunnerCounts


def engine_state(scheduler: Scheduler, counted: RunnerCounts, *, at: float) -> EngineState:
    """The counts at clock reading `at`. Blocks are those of the fullest cache group, scaled to the size of the largest."""
    counters, prefixes = scheduler.counters, scheduler.cache.statistics
    grammars = scheduler.constraints.counts()
    fullest = min(scheduler.cache.allocators, key=_free_part)
    largest = max(pool.num_blocks for pool in scheduler.cache.allocators)
    running = len(scheduler.table.rows.running)
    running_requests = len({each.request.request_id for each in scheduler.table.rows.running})
    return EngineState(
        at=at,
        last_step=max(scheduler.last_commit, counters.since),
        steps=counters.steps,
        running=running,
        waiting=counters.accepted - sum(counters.finished.values()) - running,
        waiting_tokens=sum(
            each.num_prompt_tokens for each in scheduler.table.alive if each.phase is not Phase.RUNNING
        ),
        running_requests=running_requests,
        waiting_requests=len(scheduler.table.requests) - running_requests,
        accepted=counters.accepted,
        finished={reason.value: count for reason, count in counters.finished.items()},
        finished_requests={reason.value: count for reason, count in counters.finished_requests.items()},
        preemptions=counters.preemptions,
        prompt_tokens=counters.computed_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        prefix_queries=prefixes.queried_tokens,
        prefix_hits=prefixes.hit_tokens,
        prefix_lost=dict(prefixes.lost_tokens),
        free_blocks=fullest.num_free * largest // fullest.num_blocks,
        cached_blocks=fullest.num_kept * largest // fullest.num_blocks,
        leaked_blocks=counters.leaked_blocks,
        grammar_compiles=grammars.compiles,
        grammar_compile_seconds=grammars.compile_seconds,
        mask_seconds=grammars.mask_seconds,
        late_masks=counters.late_masks,
        late_compiles=counted.late_compiles,
        graph_steps=dict(counted.graph_steps),
        device_wait_seconds=counted.device_wait_seconds or 0.0,
        tiers={} if scheduler.cache.tiers is None else scheduler.cache.tiers.counts(),
    )


def leaked_blocks(scheduler: Scheduler) -> int:
    """Blocks of all groups that are not free although no table holds them; costs a look at every table entry."""
    pools = enumerate(scheduler.cache.allocators)
    return sum(pool.num_blocks - pool.num_free - len(set(holders(scheduler, group))) for group, pool in pools)


def _free_part(pool: BlockAllocator) -> float:
    return pool.num_free / pool.num_blocks
