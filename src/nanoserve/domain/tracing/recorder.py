"""Records the changes of each turn of an engine as a `Turn`; its cost is that of the changes, and nothing while detached."""

from __future__ import annotations

from collections.abc import Iterable

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.scheduling.steps import DecodingRows, InFlightStep, Progress
from nanoserve.domain.scheduling.wide_steps import surplus
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports import trace
from nanoserve.ports.driven import Clock, Tokenizer
from nanoserve.ports.events import SequenceAdmitted
from nanoserve.ports.step import StepResult


class Recorder:
    """The recorder of one engine from its creation on; made by `Engine.record`.

    Args:
        scheduler: of that engine.
        clock: of that engine.
        tokenizer: spells the tokens; None leaves them out of the trace.
        began: the clock's reading that the trace's times count from; None is now.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        tokenizer: Tokenizer | None = None,
        *,
        began: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._began = clock.now() if began is None else began
        self._tokenizer = tokenizer
        self._journal: list[trace.KVChange] = []
        scheduler.cache.journal = self._journal
        self._turns: list[trace.Turn] = []
        self._arrived: list[trace.Arrival] = []
        self._happened: list[trace.Happening] = []
        self._num_notices = len(scheduler.table.notices)
        self._decoding: DecodingRows | None = None
        self._committed: int | None = None
        self._num_generated = 0
        self._words: list[trace.Words] = []
        self._spelled: set[int] = set()
        alive = scheduler.table.alive
        self._keys = {(each.request.request_id, each.index): each.key for each in alive}

    def snapshot(self) -> trace.Snapshot:
        self._close_turn()
        self._decoding = None
        self._spelled.clear()
        return read_snapshot(self._scheduler, at=self._now())

    def take(self) -> list[trace.Turn]:
        turns, self._turns = self._turns, []
        return turns

    def note_added(self, sequences: Iterable[Sequence]) -> None:
        """A request was accepted."""
        for sequence in sequences:
            request_id = sequence.request.request_id
            self._keys[request_id, sequence.index] = sequence.key
            num_prompt, most = sequence.num_prompt_tokens, sequence.max_total_tokens
            self._arrived.append(trace.Arrival(sequence.key, request_id, sequence.index, num_prompt, most))
            if self._tokenizer is not None:
                self._words.append(self._spell(sequence, sequence.token_ids))

    def note_planned(self, flight: InFlightStep) -> None:
        """A step was planned, and is on its way to the runner."""
        self._note_moves()
        chunks = tuple(
            trace.TracedChunk(sequence.key, chunk.start, chunk.length, chunk.samples)
            for sequence, chunk in flight.chunks
        )
        same = flight.decoding is self._decoding
        self._decoding = flight.decoding
        decoding = None if same else tuple([sequence.key for sequence in flight.decoding.sequences])
        self._happened.append(trace.PlannedStep(flight.plan.step, chunks, decoding, flight.plan.width))

    def note_repeated(self, sequences: Iterable[Sequence]) -> None:
        """The newest step was drawn without these."""
        self._happened.extend(trace.Repetition(each.key) for each in sequences)

    def note_committed(self, flight: InFlightStep, result: StepResult, gained: list[Progress]) -> None:
        """A step is done; where it was wide, it may have given fewer tokens than it was planned for."""
        self._note_moves()
        lacks = surplus(flight, result)
        self._happened.extend(trace.Repetition(sequence.key, count) for sequence, count in lacks)
        self.note_gained(flight.plan.step, gained)

    def note_gained(self, step: int, gained: list[Progress]) -> None:
        """Sequences have gained these tokens by a step."""
        self._committed = step
        self._num_generated += len(gained)
        if self._tokenizer is not None:
            self._words.extend([self._spell(sequence, [token]) for sequence, token, _ in gained])

    def note_turn(self) -> None:
        """The turn is over, and its notices and ends are about to be reported."""
        self._close_turn()
        self._num_notices = 0

    def _note_moves(self) -> None:
        notices = self._scheduler.table.notices
        for notice in notices[self._num_notices :]:
            key = self._keys[notice.request_id, notice.index]
            self._happened.append(
                trace.Admission(key, notice.row, notice.num_cached_tokens, notice.resumed)
                if isinstance(notice, SequenceAdmitted)
                else trace.Preemption(key)
            )
        self._num_notices = len(notices)

    def _note_endings(self) -> list[trace.Ending]:
        """Those that have ended since the last call; some may be reported only later."""
        keys, ended = self._keys, self._scheduler.table.ended
        fresh = [each for each in ended if keys.pop((each.request.request_id, each.index), None) is not None]
        return [_ending(each) for each in fresh]

    def _close_turn(self) -> None:
        self._note_moves()
        endings = self._note_endings()
        if not (endings or self._arrived or self._happened or self._journal or self._committed):
            return
        prefixes = self._scheduler.cache.statistics
        self._turns.append(
            trace.Turn(
                at=self._now(),
                arrived=tuple(self._arrived),
                happened=tuple(self._happened),
                ended=tuple(endings),
                committed=self._committed,
                num_generated=self._num_generated,
                kv=tuple(self._journal),
                prefix_queries=prefixes.queried_tokens,
                prefix_hits=prefixes.hit_tokens,
                words=tuple(self._words),
            )
        )
        for noted in (self._arrived, self._happened, self._journal, self._words):
            noted.clear()
        self._committed, self._num_generated = None, 0

    def _now(self) -> float:
        return round(self._clock.now() - self._began, 6)

    def _spell(self, sequence: Sequence, token_ids: list[int]) -> trace.Words:
        assert self._tokenizer is not None
        new = dict.fromkeys(token for token in token_ids if token not in self._spelled)
        self._spelled.update(new)
        texts = {token: self._tokenizer.decode([token]) for token in new}
        return trace.Words(sequence.key, tuple(token_ids), texts)


def _ending(sequence: Sequence) -> trace.Ending:
    assert sequence.finish_reason is not None
    return trace.Ending(sequence.key, sequence.finish_reason.value, sequence.num_generated_tokens)


def read_snapshot(scheduler: Scheduler, *, at: float) -> trace.Snapshot:
    """The state between two turns; `at` is in seconds since the trace began."""
    alive = scheduler.table.alive
    counters, prefixes = scheduler.counters, scheduler.cache.statistics
    return trace.Snapshot(
        at=at,
        step=scheduler.table.step,
        sequences=tuple(_traced(each, scheduler) for each in sorted(alive, key=lambda each: each.key)),
        findable=tuple(pool.findable for pool in scheduler.cache.allocators),
        preemptions=counters.preemptions,
        finished={reason.value: count for reason, count in counters.finished.items() if count},
        generated_tokens=counters.generated_tokens,
        prefix_queries=prefixes.queried_tokens,
        prefix_hits=prefixes.hit_tokens,
    )


def _traced(sequence: Sequence, scheduler: Scheduler) -> trace.TracedSequence:
    is_running = sequence.phase is Phase.RUNNING
    return trace.TracedSequence(
        key=sequence.key,
        request_id=sequence.request.request_id,
        index=sequence.index,
        num_prompt_tokens=sequence.num_prompt_tokens,
        max_total_tokens=sequence.max_total_tokens,
        phase=sequence.phase.value,
        row=sequence.row,
        num_cached_tokens=sequence.num_cached_tokens,
        num_scheduled_tokens=scheduler.table.decoding.num_planned(sequence) if is_running else 0,
        num_shared_blocks=sequence.num_shared_blocks,
        tables=scheduler.cache.states.tables_beside(sequence),
        states=scheduler.cache.states.of(sequence),
    )
