"""The engine's books, added up for its observers. Reading them changes nothing, and costs the steps nothing."""

from __future__ import annotations

from typing import Any

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.event_log import EventLog
from nanoserve.domain.scheduling.ends import Tally
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.driven import Clock, ModelRunner, Tokenizer
from nanoserve.ports.engine_facts import EngineCounts, EngineState, Living
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv_events import KVEventPublisher


class EngineBooks:
    """The verbs of an engine that look, record, count and forget; none of them touches a step."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner[Any],
        clock: Clock,
        kv_events: KVEventPublisher | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._kv_events = kv_events
        if kv_events is not None:
            if not scheduler.limits.prefix_caching:
                raise BadValueError("kv_events", "there are none where prefix caching is off")
            cache = scheduler.cache
            host = None if cache.tiers is None else cache.tiers.host
            cache.events = EventLog(scheduler.limits.block_size, cache.allocators, host)
            cache.states.events = cache.events
            if cache.tiers is not None:
                cache.tiers.events = cache.events
        self._counting_since = clock.now()
        self._leaked_blocks = 0
        self._recorder: Recorder | None = None

    def record(self, tokenizer: Tokenizer | None = None, *, began: float | None = None) -> Recorder:
        """Keep a step log from now on; only one is kept. With `tokenizer` it holds the words too.

        Its times count from the clock's reading `began`, or from now.
        """
        self.stop_recording()
        self._recorder = Recorder(self.scheduler, self._clock, tokenizer, began=began)
        return self._recorder

    def stop_recording(self) -> None:
        """Keep no step log any more."""
        self.scheduler.cache.journal = self._recorder = None

    def state(self, *, count_leaks: bool = False) -> EngineState:
        """The books now. Blocks are those of the fullest cache group, scaled to the size of the largest.

        Leaked ones are those of the last time that they were counted.
        """
        scheduler = self.scheduler
        if count_leaks:
            self._leaked_blocks = _count_leaks(scheduler)
        tally, prefixes, counted = scheduler.tally, scheduler.cache.statistics, self._runner.counts()
        grammars = scheduler.constraints.counts()
        fullest = min(scheduler.cache.allocators, key=_free_part)
        largest = max(pool.num_blocks for pool in scheduler.cache.allocators)
        running = len(scheduler.seats.running)
        running_requests = len({each.request.request_id for each in scheduler.seats.running})
        return EngineState(
            at=self._clock.now(),
            last_step=max(scheduler.last_commit, self._counting_since),
            steps=tally.steps,
            running=running,
            waiting=tally.accepted - sum(tally.finished.values()) - running,
            waiting_tokens=sum(
                each.num_prompt_tokens for each in self._alive() if each.phase is not Phase.RUNNING
            ),
            running_requests=running_requests,
            waiting_requests=len(scheduler.requests) - running_requests,
            accepted=tally.accepted,
            finished={reason.value: count for reason, count in tally.finished.items()},
            finished_requests={reason.value: count for reason, count in tally.finished_requests.items()},
            preemptions=tally.preemptions,
            prompt_tokens=tally.computed_prompt_tokens,
            generated_tokens=tally.generated_tokens,
            prefix_queries=prefixes.queried_tokens,
            prefix_hits=prefixes.hit_tokens,
            prefix_lost=dict(prefixes.lost_tokens),
            free_blocks=fullest.num_free * largest // fullest.num_blocks,
            cached_blocks=fullest.num_kept * largest // fullest.num_blocks,
            leaked_blocks=self._leaked_blocks,
            grammar_compiles=grammars.compiles,
            grammar_compile_seconds=grammars.compile_seconds,
            mask_seconds=grammars.mask_seconds,
            late_masks=tally.late_masks,
            late_compiles=counted.late_compiles,
            graph_steps=dict(counted.graph_steps),
            device_wait_seconds=counted.device_wait_seconds or 0.0,
            tiers={} if scheduler.cache.tiers is None else scheduler.cache.tiers.counts(),
        )

    def counts(self) -> EngineCounts:
        """The few numbers that cost next to nothing to read."""
        step, tally = self.scheduler.step, self.scheduler.tally
        prompt, generated = tally.computed_prompt_tokens, tally.generated_tokens
        return EngineCounts(step, tally.steps, prompt, generated, self._runner.counts())

    def living(self) -> list[Living]:
        """How far each living sequence is, in the order of arrival."""
        return [Living(each.num_prompt_tokens, each.num_generated_tokens) for each in self._alive()]

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, in all its tiers."""
        self._forget_prefixes(with_directory=True)

    def _forget_prefixes(self, *, with_directory: bool) -> None:
        cache = self.scheduler.cache
        cache.forget_prefixes(with_directory=with_directory)
        if cache.events is not None:
            cache.events.note_cleared()
            self._publish_kv_events()

    def start_counting(self) -> None:
        """Forget what was counted so far and which prefixes were seen, as after a warm-up; nothing may be alive."""
        assert not self.scheduler.requests
        self.scheduler.tally = Tally()
        self._forget_prefixes(with_directory=False)
        self.scheduler.cache.start_counting()
        self._counting_since = self._clock.now()

    def _publish_kv_events(self) -> None:
        log = self.scheduler.cache.events
        if log is not None and self._kv_events is not None and (events := log.take()) is not None:
            self._kv_events.publish(events)

    def _alive(self) -> list[Sequence]:
        families = self.scheduler.requests.values()
        return [each for family in families for each in family if each.phase is not Phase.FINISHED]


def _count_leaks(scheduler: Scheduler) -> int:
    """Blocks of all groups that are not free although no table holds them; costs a look at every table entry."""
    pools = enumerate(scheduler.cache.allocators)
    return sum(pool.num_blocks - pool.num_free - len(set(scheduler.holders(group))) for group, pool in pools)


def _free_part(pool: BlockAllocator) -> float:
    return pool.num_free / pool.num_blocks
