"""The engine: plans steps, keeps up to `depth` of them in flight, and turns what comes back into events.

This loop is all there is. With depth 1 it works in lock-step; with depth 2 the next step is planned and queued while
the device still computes, because planning needs to know only that a token exists, not which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from nanoserve.domain.answers import Answers
from nanoserve.domain.books import EngineBooks
from nanoserve.domain.invariants import audit
from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.ports.driven import Clock, ModelRunner, Tokenizer
from nanoserve.ports.errors import BadValueError, RunnerLostError, StepFailedError
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.kv_events import KVEventPublisher
from nanoserve.ports.kv_tiers import BlockDirectory
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import StepPlan, StepResult

TicketT = TypeVar("TicketT")
FailureNote = Callable[[int, Exception, list[str]], None]
"""Takes the number of a step that failed, why, and the ids of the requests that end for it."""


class Engine(EngineBooks, Generic[TicketT]):
    """Continuous batching over a `ModelRunner`; fulfils `EngineHandle`. Synchronous and single-threaded.

    `tokenizer=None` leaves every text empty. `paranoid` audits all books after every turn. `constraints` has grammars, and
    a runner that can draw late; without it no request may have one. `on_failure` is called for each step that fails, and
    `kv_events` is given what a turn did to the prefix cache. Blocks that host memory has no room for are in `directory`.
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
    ) -> None:
        if depth < 1:
            raise BadValueError("depth", f"must be at least 1, got {depth}")
        cache = KVCache(
            cache_groups, num_blocks=limits.num_blocks, block_size=limits.block_size, isolated=limits.isolated
        )
        if limits.host_slots:
            cache.add_tiers(limits.host_slots, min_tokens=limits.min_offload_tokens, directory=directory)
        super().__init__(Scheduler(limits, cache, clock), runner, clock, kv_events)
        self._has_text = tokenizer is not None
        self._answers = Answers(self.scheduler, tokenizer)
        self._tiers = cache.tiers
        self._depth = depth
        self._paranoid = paranoid
        self._on_failure = on_failure
        self._in_flight: deque[tuple[StepPlan, TicketT]] = deque()
        self._is_undrawn = False
        self._events: list[EngineEvent] = []
        self.scheduler.constraints = constraints or Constraints()

    @property
    def has_work(self) -> bool:
        """True if a turn would compute, collect or report something."""
        is_carrying = self._tiers is not None and self._tiers.is_busy
        return bool(self.scheduler.requests or self.scheduler.ended or self._in_flight or is_carrying)

    def add(self, request: Request) -> None:
        """Accept a request, or raise a `RequestRefusedError` or `BadValueError` and change nothing."""
        if request.sampling.stop and not self._has_text:
            raise BadValueError("stop", "stop strings need an engine with a tokenizer")
        self.scheduler.add(request)
        if self._recorder is not None:
            self._recorder.note_added(self.scheduler.requests[request.request_id])

    def abort(self, request_id: str) -> None:
        """End a request at any moment; unknown and finished ones are ignored. The next turn reports the end."""
        self.scheduler.abort(request_id)

    def request_ids(self) -> list[str]:
        """The requests that have not ended."""
        return list(self.scheduler.requests)

    def turn(self) -> list[EngineEvent]:
        """Fill the pipeline, bring home the oldest step, and report what happened.

        A step that fails ends the sequences at fault with an error event; all others are computed again. Where no
        sequence is known to be at fault, those of the step are tried one at a time. Raises `RunnerLostError` where the runner
        cannot compute any more.
        """
        events = self._events
        try:
            self._fill_pipeline()
            if self._in_flight:
                self._bring_home_oldest(events)
            elif self.scheduler.constraints.is_awaiting:
                self.scheduler.constraints.rest()
            elif self._tiers is not None and self._tiers.is_reading:
                self._tiers.rest()
        except BaseException:
            self._in_flight.clear()
            self._is_undrawn = False
            self.scheduler.preempt_all()
            raise
        if self._recorder is not None:
            self._recorder.note_turn()
        events[:0] = self.scheduler.notices
        self.scheduler.notices.clear()
        self._answers.report_ends(events)
        if self._paranoid:
            audit(self.scheduler)
        if self._kv_events is not None:
            self._publish_kv_events()
        self._events = []
        return events

    def _fill_pipeline(self) -> None:
        while not self._is_undrawn and len(self._in_flight) < self._depth and (plan := self.scheduler.plan()):
            if self._recorder is not None:
                self._recorder.note_planned(self.scheduler.flights[-1])
            try:
                ticket = self._runner.submit(plan)
            except Exception as error:  # noqa: BLE001 - whatever a runner raises must end in events, not in a dead loop
                self._fail(plan, error)
                return
            self._in_flight.append((plan, ticket))
            if plan.masked:
                self._is_undrawn = True
                self._draw()

    def _draw(self, *, begin: bool = False) -> None:
        """A step with masked rows is drawn as soon as all before it is committed, and nothing is planned behind it.

        Its masks may `begin` before. Other threads make them.
        """
        if not self._is_undrawn or len(self._in_flight) > 1:
            return
        self._is_undrawn = begin
        plan, ticket = self._in_flight[0]
        try:
            if begin:
                self.scheduler.constraints.begin(self.scheduler.flights[0])
            else:
                self.scheduler.draw(ticket)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(plan, error)

    def _bring_home_oldest(self, events: list[EngineEvent]) -> None:
        plan, ticket = self._in_flight.popleft()
        try:
            result = self._collect(plan, ticket)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(plan, error)
            return
        if result.broken:
            self._end_broken(plan, result.broken)
        gained = self.scheduler.commit(result)
        if self._recorder is not None:
            self._recorder.note_committed(plan.step, gained)
        try:
            self._draw(begin=True)  # the device waits for it, and events can be made meanwhile
        finally:
            self._answers.report(gained, events)
        self._draw()

    def _end_broken(self, plan: StepPlan, rows: tuple[int, ...]) -> None:
        """Rows that have no token end, and cost the others of the step nothing: no row computes with another's numbers."""
        error = StepFailedError(f"step {plan.step}: logits of rows {rows} are not finite", rows)
        by_row = self.scheduler.flights[0].by_row
        ended = [by_row[row] for row in rows if by_row[row].finish_reason is None]
        for sequence in ended:
            self.scheduler.finish(sequence, FinishReason.ERROR, _reason(error))
        self._note_failure(plan, error, [each.request.request_id for each in ended])

    def _collect(self, plan: StepPlan, ticket: TicketT) -> StepResult:
        result = self._runner.collect(ticket)
        asked, yielded = len(plan.sampling_rows), len(result.token_ids)
        if asked != yielded:
            raise StepFailedError(f"{asked} rows were to yield a token and {yielded} did")
        return result

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        if isinstance(error, RunnerLostError):
            raise error
        guilty = error.guilty_rows if isinstance(error, StepFailedError) else ()
        self._in_flight.clear()
        self._is_undrawn = False
        ended = self.scheduler.fail(plan, guilty, _reason(error))
        self._note_failure(plan, error, [each.request.request_id for each in ended])

    def _note_failure(self, plan: StepPlan, error: Exception, ended: list[str]) -> None:
        if self._on_failure is not None:
            self._on_failure(plan.step, error, ended)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
