"""The engine: continuous batching over a model runner, with the methods of its port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

import attrs

from nanoserve.domain.answers import Answers
from nanoserve.domain.failures import FailureNote, preempt_all
from nanoserve.domain.invariants import audit, holders
from nanoserve.domain.kv.allocator import PrefixStatistics
from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.kv.event_log import EventLog
from nanoserve.domain.kv.names import hash_root
from nanoserve.domain.kv.tiers import Tiers, check_carried
from nanoserve.domain.pipeline import Pipeline, TicketT
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.counters import Counters
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Phase
from nanoserve.domain.sequence import Sequence as EndedSequence
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.driven import Clock, ModelRunner, Tokenizer
from nanoserve.ports.engine_facts import EngineCounts, EngineState, Living, RunnerCounts
from nanoserve.ports.errors import BadValueError, ConflictError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.kv import BlockDirectory, KVEventPublisher
from nanoserve.ports.lora import LoraFacts, LoraStore
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.steering import PARTS, WEIGHTS, PauseMode, Steering, WeightsFacts, WeightStore
from nanoserve.ports.trace import PrefixesForgotten

HAND_OVER_SECONDS: Final = 5.0
"""Seconds that the end of an answer waits at most until a directory has the blocks of its prompt."""
_LOST: Final = (
    "the weights did not come from a folder, and were lost with their memory: send all weights again"
)


class Engine(Generic[TicketT]):
    """Continuous batching over a `ModelRunner`; fulfils `EngineHandle`. Synchronous and single-threaded.

    `tokenizer=None` leaves every text empty. `paranoid` audits all counts after every turn. `constraints` has grammars and a
    runner that can draw late; without it, no request may have one. `on_failure` is called for each step that fails, and
    `kv_events` gets a turn's changes of the prefix cache. `directory` keeps blocks on a disk, and `lora_store` adapters; without
    it there are none. `weight_store` reads new weights.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        cache_groups: Sequence[CacheGroup],
        runner: ModelRunner[TicketT],
        clock: Clock,
        tokenizer: Tokenizer | None = None,
        depth: int = 1,
        paranoid: bool = False,
        constraints: Constraints | None = None,
        on_failure: FailureNote | None = None,
        kv_events: KVEventPublisher | None = None,
        directory: BlockDirectory | None = None,
        lora_store: LoraStore | None = None,
        weight_store: WeightStore | None = None,
    ) -> None:
        if depth < 1:
            raise BadValueError("depth", f"must be at least 1, got {depth}")
        if kv_events is not None and not limits.prefix_caching:
            raise BadValueError("kv_events", "needs prefix caching, which is off")
        cache = KVCache(
            cache_groups, num_blocks=limits.num_blocks, block_size=limits.block_size, isolated=limits.isolated
        )
        if limits.host_slots:
            check_carried(cache.laws, cache.kinds)
            sizes: tuple[int, int] = (limits.host_slots, limits.block_size)
            more: dict[str, Any] = {"min_tokens": limits.min_offload_tokens, "directory": directory}
            cache.tiers = cache.naming.tiers = Tiers(cache.allocators[0], *sizes, **more, note=cache.note)
        if kv_events is not None:
            host = None if cache.tiers is None else cache.tiers.host
            cache.states.events = cache.naming.events = EventLog(limits.block_size, cache.allocators, host)
            if cache.tiers is not None:
                cache.tiers.events = cache.naming.events
        self.scheduler = Scheduler(limits, cache, clock, constraints)
        self._answers = Answers(self.scheduler.table, tokenizer, limits)
        self._pipeline = Pipeline(self.scheduler, runner, self._answers, depth=depth, on_failure=on_failure)
        self._has_text = tokenizer is not None
        self._runner = runner
        self._clock = clock
        self._kv_events = kv_events
        self._paranoid = paranoid
        self._events: list[EngineEvent] = []
        self._paused: PauseMode | None = None
        self._asleep: tuple[str, ...] = ()
        self._weights = WeightsFacts()
        self._weight_store = weight_store
        self._lora_store = lora_store

    @property
    def has_work(self) -> bool:
        table, tiers = self.scheduler.table, self.scheduler.cache.tiers
        if self.scheduler.table.ended or self._pipeline:
            return True
        if not self._stands and self._paused is None:
            return bool(table.requests or (tiers is not None and tiers.is_busy))
        has_started = table.rows.running or table.waiting.head(table.rows.open_to)
        return table.deadlines.is_due(self._clock.now()) or bool(not self._stands and has_started)

    @property
    def _stands(self) -> bool:
        """True if no step is planned at all."""
        return self._paused is PauseMode.KEEP or bool(self._asleep or self._lost)

    @property
    def _lost(self) -> str:
        return _LOST if self._weight_store is not None and self._weight_store.is_lost else ""

    def add(self, request: Request) -> None:
        if request.sampling.stop and not self._has_text:
            raise BadValueError("stop", "stop strings need an engine with a tokenizer")
        self.scheduler.add(request)
        if self._pipeline.recorder is not None:
            self._pipeline.recorder.note_added(self.scheduler.table.requests[request.request_id])

    def abort(self, request_id: str) -> None:
        for sequence in list(self.scheduler.table.requests.get(request_id, ())):
            self.scheduler.table.finish(sequence, FinishReason.ABORT)

    def tell_early(self, tell: Callable[[list[EngineEvent]], None]) -> None:
        self._answers.tell = tell

    def request_ids(self) -> list[str]:
        return list(self.scheduler.table.requests)

    def turn(self) -> list[EngineEvent]:
        """Fill the pipeline, collect the oldest step, and report what happened, as `Pipeline.advance` does."""
        events = self._events
        if self._stands:
            for sequence in self.scheduler.table.deadlines.due(self._clock.now()):
                self.scheduler.table.finish(sequence, FinishReason.TIMEOUT)
        self._pipeline.advance(events, fills=not self._stands)
        if self._pipeline.recorder is not None:
            self._pipeline.recorder.note_turn()
        events[:0] = self._answers.take_notices()
        hands_over = self.scheduler.limits.hands_over and not self._stands
        self._answers.report_ends(events, self._waits if hands_over else None)
        if self._paranoid:
            audit(self.scheduler)
        self._publish_kv_events()
        self._drop_loras()
        self._events = []
        return events

    def _waits(self, ended: EndedSequence) -> bool:
        """True while an end waits for blocks on their way to the directory, up to a time limit."""
        tiers, since = self.scheduler.cache.tiers, ended.finished
        is_late = since is not None and self._clock.now() - since > HAND_OVER_SECONDS
        return tiers is not None and not is_late and tiers.hands_over(ended)

    def record(self, tokenizer: Tokenizer | None = None, *, began: float | None = None) -> Recorder:
        self.stop_recording()
        self._pipeline.recorder = Recorder(self.scheduler, self._clock, tokenizer, began=began)
        return self._pipeline.recorder

    def stop_recording(self) -> None:
        self.scheduler.cache.journal = self._pipeline.recorder = None

    def state(self, *, count_leaks: bool = False) -> EngineState:
        if count_leaks:
            self.scheduler.counters.leaked_blocks = leaked_blocks(self.scheduler)
        return engine_state(self.scheduler, self._runner.counts(), at=self._clock.now())

    def counts(self) -> EngineCounts:
        counted = self.scheduler.counters
        prompt, generated = counted.computed_prompt_tokens, counted.generated_tokens
        return EngineCounts(
            self.scheduler.table.step, counted.steps, prompt, generated, self._runner.counts()
        )

    def living(self) -> list[Living]:
        return [
            Living(each.num_prompt_tokens, each.num_generated_tokens) for each in self.scheduler.table.alive
        ]

    def forget_prefixes(self, *, with_directory: bool = True) -> None:
        """Empty the prefix cache, in all its tiers or in all but the directory."""
        cache = self.scheduler.cache
        for pool in cache.allocators:
            pool.forget()
        if cache.tiers is not None:
            cache.tiers.forget(with_directory=with_directory)
        cache.note(PrefixesForgotten())
        if cache.naming.events is not None:
            cache.naming.events.note_cleared()
        self._publish_kv_events()

    @property
    def steering(self) -> Steering:
        is_paused = self._paused is not None
        return Steering(paused=is_paused, asleep=self._asleep, weights=self._weights, lost=self._lost)

    def pause(self, mode: PauseMode) -> None:
        if mode is PauseMode.ABORT:
            for request_id in self.request_ids():
                self.abort(request_id)
        self._paused = PauseMode.WAIT if mode is PauseMode.WAIT else PauseMode.KEEP
        self.scheduler.table.waiting.is_closed = True

    def resume(self) -> None:
        self._paused = None
        self.scheduler.table.waiting.is_closed = bool(self._asleep)

    def sleep(self, level: int) -> None:
        if self._pipeline or len(self._asleep) == len(PARTS):
            raise ConflictError(
                "the engine is already asleep, or still computes: wake it up, or pause it first"
            )
        self.weight_store.sleep(level)
        self._asleep = PARTS
        self.scheduler.table.waiting.is_closed = True
        preempt_all(self.scheduler)
        self.forget_prefixes(with_directory=False)

    def note_awake(self, parts: Sequence[str]) -> None:
        self._asleep = tuple([each for each in self._asleep if each not in parts])
        self.scheduler.table.waiting.is_closed = bool(self._asleep) or self._paused is not None

    @property
    def weight_store(self) -> WeightStore:
        if self._weight_store is None:
            raise BadValueError(
                "weights", "those of this engine cannot be updated: they did not come from a folder"
            )
        return self._weight_store

    def write_weights(self, facts: WeightsFacts) -> None:
        """As in the port: blocks of the old weights are not found any more, and sequences with rows keep theirs unshared until a preemption."""
        is_open = self._paused is None and not self._asleep and not self._lost
        if self._pipeline or (is_open and self.scheduler.table.requests):
            raise ConflictError("requests are running: pause the engine before you change its weights")
        if WEIGHTS in self._asleep:
            raise ConflictError("the weights are asleep: wake them up before you change them")
        self.weight_store.write()
        self._weights, self.scheduler.table.weights = facts, facts.digest
        self.forget_prefixes(with_directory=False)
        limits = self.scheduler.limits
        for each in self.scheduler.table.alive:
            root = hash_root(
                each.request,
                prefix_caching=limits.prefix_caching,
                isolated=limits.isolated,
                lora=each.lora,
                weights=facts.digest,
                kept=limits.kv_cache_dtype,
                deterministic=each.is_deterministic,
            )
            each.hash_root = None if each.phase is Phase.RUNNING else root
            each.block_hashes = []

    def start_counting(self) -> None:
        assert not self.scheduler.table.requests
        self.forget_prefixes(with_directory=False)
        leaked = self.scheduler.counters.leaked_blocks
        self.scheduler.counters = self.scheduler.table.counters = Counters(
            since=self._clock.now(), leaked_blocks=leaked
        )
        self.scheduler.cache.statistics = PrefixStatistics()

    def read_lora(self, folder: str) -> LoraFacts:
        if self._lora_store is None:
            raise BadValueError("lora", "there are no slots for adapters; set max_loras")
        return self._lora_store.read(folder)

    def name_lora(self, name: str, facts: LoraFacts) -> None:
        self.scheduler.table.loras.name(name, facts)
        self._drop_loras()

    def forget_lora(self, name: str) -> None:
        self.scheduler.table.loras.forget(name)
        self._drop_loras()

    def _drop_loras(self) -> None:
        dropped = self.scheduler.table.loras.dropped
        while dropped and self._lora_store is not None:
            self._lora_store.drop(dropped.pop())

    def _publish_kv_events(self) -> None:
        log = self.scheduler.cache.naming.events
        if log is not None and self._kv_events is not None and (events := log.take()) is not None:
            self._kv_events.publish(events)


def engine_state(scheduler: Scheduler, counted: RunnerCounts, *, at: float) -> EngineState:
    """The counts at clock reading `at`. Blocks are those of the fullest cache group, scaled to the size of the largest."""
    table, counters, prefixes = scheduler.table, scheduler.counters, scheduler.cache.statistics
    grammars = scheduler.constraints.counts()
    fullest = min(scheduler.cache.allocators, key=lambda pool: pool.num_free / pool.num_blocks)
    largest = max(pool.num_blocks for pool in scheduler.cache.allocators)
    running = len(table.rows.running)
    running_requests = len({each.request.request_id for each in table.rows.running})
    return EngineState(
        at=at,
        steps=counters.steps,
        accepted=counters.accepted,
        finished={reason.value: count for reason, count in counters.finished.items()},
        finished_requests={reason.value: count for reason, count in counters.finished_requests.items()},
        preemptions=counters.preemptions,
        prompt_tokens=counters.computed_prompt_tokens,
        generated_tokens=counters.generated_tokens,
        drafted_rows=counters.drafted_rows,
        draft_tokens=counters.draft_tokens,
        accepted_tokens=counters.accepted_tokens,
        leaked_blocks=counters.leaked_blocks,
        late_masks=counters.late_masks,
        last_step=max(scheduler.last_commit, counters.since),
        running=running,
        waiting=counters.accepted - sum(counters.finished.values()) - running,
        waiting_tokens=sum(each.num_prompt_tokens for each in table.alive if each.phase is not Phase.RUNNING),
        running_requests=running_requests,
        waiting_requests=len(table.requests) - running_requests,
        prefix_queries=prefixes.queried_tokens,
        prefix_hits=prefixes.hit_tokens,
        prefix_lost=dict(prefixes.lost_tokens),
        free_blocks=fullest.num_free * largest // fullest.num_blocks,
        cached_blocks=fullest.num_kept * largest // fullest.num_blocks,
        grammar_compiles=grammars.compiles,
        grammar_compile_seconds=grammars.compile_seconds,
        mask_seconds=grammars.mask_seconds,
        **attrs.asdict(counted),
        lora_requests=dict(table.loras.requests),
        paused=table.waiting.is_closed,
        tiers={} if scheduler.cache.tiers is None else scheduler.cache.tiers.counts(),
    )


def leaked_blocks(scheduler: Scheduler) -> int:
    """Blocks of all groups that are not free although no table holds them; reads every table entry."""
    pools = enumerate(scheduler.cache.allocators)
    return sum(pool.num_blocks - pool.num_free - len(set(holders(scheduler, group))) for group, pool in pools)
