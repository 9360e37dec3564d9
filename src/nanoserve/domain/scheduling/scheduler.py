"""Who computes what in the next step, and what became of the last one.

There is one rule: a sequence has tokens, some of them are computed, and a step computes some of the rest. A long prompt,
a prefix hit, a resumption after preemption and a decode are that rule with different numbers. `plan` never waits for
a token's value, only for its existence, so several steps may be in flight; `commit` brings the values.

Theory of operation. `num_scheduled` counts the tokens of a sequence that some planned step computes; it may be
one ahead of the tokens that are known for every step in flight. `plan` makes a step from four sources, in this order, so
that running sequences are served before waiting ones:

1. Rows in the decode set compute one token each. The set is kept from step to step (`DecodeSet`); only the rows whose
   position is the first of a block are looked at, because only they need a block.
2. Prefills that have begun go on with the tokens that are left of the step's budget, the oldest first.
3. Waiting sequences are admitted, strictly from the head of the queue, while there are tokens, rows and blocks.
4. What `commit` has found since the last plan goes along: rows given back, blocks exchanged for equal ones.

Most steps are the one before, one token further: nothing waits or prefills, nothing was added, ended or exchanged since,
and no row needs a block or is through. Then the scheduler `is_settled`, and looks at nothing else.

Planning needs only that a token exists: its position follows from the step's number, its block is allocated before its
value is known, and the device itself feeds the value into the next step. What does need values waits for `commit`:
stop ids, the names of full blocks, and the end of a request. So a step or two may compute rows that have ended by
then; their tokens are dropped, and their blocks may be given away at once, because the device runs steps in order.

Nothing of a plan is taken back once it is handed out (`Draft` is still mutable, `StepPlan` is not). Where blocks run out,
the sequence that comes last in order gives back all it has, is withdrawn from the draft, and waits for its old place
in the queue. Length is bounded in advance (`max_total_tokens`), so the decode set knows when a row leaves.

Which steps are in flight is kept in `flights`; `committed_step` is the newest that came home. Everything that takes a row
back (ends, preemption, failures) is in `ends.py`, and what a page of the cache may be used for in `kv/cache.py`.
"""

from __future__ import annotations

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.admission import check_request, expand_request
from nanoserve.domain.scheduling.chunk_budget import ChunkBudget
from nanoserve.domain.scheduling.draft import Draft, Flight
from nanoserve.domain.scheduling.ends import Roster
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.sequence import Phase, Sequence, Trigger
from nanoserve.ports.driven import Clock
from nanoserve.ports.errors import DuplicateRequestError
from nanoserve.ports.events import SequenceAdmitted
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import AdmittedRow, Chunk, StepPlan, StepResult, TokenLogprobs

Progress = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its new token, and the token's log-probabilities where asked for."""


class Scheduler(Roster):
    """Plans steps over device rows and KV blocks. Deterministic: the same calls give the same plans."""

    def __init__(self, limits: Limits, cache: KVCache, clock: Clock) -> None:
        super().__init__(limits, cache, clock)
        self.last_commit = 0.0
        self._chunk_budget = ChunkBudget(max_itl=limits.max_itl, floor=limits.block_size)
        self._spare = [int(limits.watermark * pool.num_blocks) for pool in cache.allocators]

    def add(self, request: Request) -> None:
        """Queue a request's sequences, or raise a `RequestRefusedError` / `BadValueError` and queue nothing."""
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"request {request.request_id!r} is already being served")
        check_request(request, self.limits, self.cache)
        self.waiting.check_room(request)
        self.is_settled = False
        grammar = self.constraints.compile(request)
        sequences = expand_request(request, self.limits, arrival=self.tally.accepted, now=self._clock.now())
        may_start = self.constraints.open(sequences, grammar)
        self.requests[request.request_id] = sequences
        self.tally.accepted += len(sequences)
        for sequence in sequences:
            self._deadlines.watch(sequence)
        sequences[0].followers = sequences[1:]
        if may_start:
            self.waiting.push(sequences[0])
        else:
            self._hold(sequences[0])
        for follower in sequences[1:]:
            self.waiting.hold_back(follower)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before something in flight is committed."""
        now = self._clock.now()
        for sequence in self._deadlines.due(now):
            self.finish(sequence, FinishReason.TIMEOUT)
        if self.is_settled and not self.decoding.has_date(self.step + 1):
            return self._repeat(now)
        if self.constraints.is_awaiting:
            self._welcome_arrivals()
        tiers = self.cache.tiers
        for sequence in () if tiers is None else tiers.poll():
            self._hold_no_more(sequence)
        if self.suspects and self.flights:
            return None
        draft = Draft(self.step + 1)
        self._grow_decoding(draft)
        left = self.limits.max_num_batched_tokens - len(self.decoding)
        left = self._chunk_budget.allowance(left, len(self.decoding))
        left = self._continue_prefills(draft, left)
        self._admit(draft, left, now)
        computes_something = draft.chunks or self.decoding
        if not computes_something and not (tiers and tiers.calls_for_step(is_idle=not self.flights)):
            return None
        return self._take_off(draft, now)

    def _repeat(self, now: float) -> StepPlan:
        """The step before, one token further."""
        self.step += 1
        decoding = self.decoding.snapshot()
        plan = StepPlan(step=self.step, decoding=decoding.rows)
        self.flights.append(Flight(plan, (), decoding, [], [], now))
        self.tally.steps += 1
        return plan

    def _take_off(self, draft: Draft, now: float) -> StepPlan:
        self.step = step = draft.step
        decoding = self.decoding.snapshot()
        for updates in self._remapped.values():
            draft.table_updates.extend(updates)
        bound = self.constraints.matchers
        masked = self.constraints.masked_rows(draft, decoding.sequences, decoding.rows) if bound else ()
        plan = draft.seal(self.seats.released(), decoding.rows, masked)
        if self.cache.tiers is not None:
            plan = self.cache.tiers.go_along(plan)
        self._remapped.clear()
        filling, through = self.decoding.needing_blocks(step + 1), self.decoding.through_after(step)
        self.flights.append(Flight(plan, tuple(draft.chunks), decoding, filling, through, now, draft.copies))
        # Those that leave are computed in this step all the same: `decoding` was taken before.
        for sequence in through:
            self.decoding.leave(sequence, step)
        for sequence, chunk in draft.chunks:
            if chunk.samples and sequence.num_scheduled_tokens + 1 < sequence.max_total_tokens:
                self.decoding.join(sequence, step + 1)
        self.tally.steps += 1
        moves = self.waiting or self._prefilling or self.suspects or bound or self.cache.tiers is not None
        self.is_settled = bool(self.decoding) and not moves
        return plan

    def _grow_decoding(self, draft: Draft) -> None:
        for sequence in self.decoding.needing_blocks(draft.step):
            while sequence in self.decoding:
                assert sequence.decode_offset is not None
                position = draft.step - sequence.decode_offset
                updates = self.cache.grow(sequence, position, position + 1)
                if updates is not None:
                    draft.table_updates.extend(updates)
                    if self.cache.has_states:
                        draft.copy(self.cache.states.take(sequence, position, decoding=True))
                    break
                # The youngest may be this one: it has then left the decode set, which ends the loop.
                self._preempt(self.seats.youngest(), draft)

    def _continue_prefills(self, draft: Draft, left: int) -> int:
        for sequence in list(self._prefilling):
            if left <= 0:
                break
            # One that is further back may have been preempted for the blocks of one before it.
            if sequence.phase is Phase.RUNNING:
                left -= self._compute_chunk(sequence, draft, left)
        return left

    def _compute_chunk(self, sequence: Sequence, draft: Draft, most: int) -> int:
        start = sequence.num_scheduled_tokens
        end = self.cache.states.cut(sequence, start, min(start + most, len(sequence.token_ids)))
        while (updates := self.cache.grow(sequence, start, end)) is None:
            victim = self.seats.youngest()
            if victim is sequence:
                return 0
            self._preempt(victim, draft)
        draft.table_updates.extend(updates)
        draft.copy(self.cache.states.take(sequence, start, decoding=False))
        assert sequence.row is not None
        samples = end == len(sequence.token_ids)
        draft.chunks.append((sequence, Chunk(sequence.row, start, end - start, samples)))
        sequence.num_scheduled_tokens = end
        sequence.last_step = draft.step
        if samples:
            self._prefilling.remove(sequence)
        return end - start

    def _admit(self, draft: Draft, left: int, now: float) -> None:
        while left > 0 and not self.seats.are_taken:
            sequence = self._next_to_admit()
            # A preempted sequence stays out while a step of its former row is in flight: that step's token is appended
            # when it is committed, and a row admitted now would lack it.
            if sequence is None or sequence.last_step > self.committed_step:
                return
            shared = self.cache.match(sequence)
            start = shared * self.limits.block_size
            chunk_end = self.cache.states.cut(sequence, start, min(start + left, len(sequence.token_ids)))
            spare = self._spare if self.seats.running else [0] * len(self._spare)
            if not self.cache.can_admit(sequence, shared, chunk_end, spare=spare):
                return
            tiers = None if self.suspects else self.cache.tiers
            run = [] if tiers is None else tiers.worth_fetching(sequence, shared)
            if run and tiers is not None and tiers.num_waiting >= len(self.seats.free):
                return  # what comes in for more sequences than there are rows would displace what others need
            self.waiting.pop(sequence)
            if run and tiers is not None and tiers.fetch(sequence, shared, run):
                self._hold(sequence)
                continue
            draft.copy(self.cache.admit(sequence, shared, chunk_end))
            sequence.num_scheduled_tokens = start
            self._seat(sequence, draft, now)
            left -= self._compute_chunk(sequence, draft, left)

    def _next_to_admit(self) -> Sequence | None:
        if not self.suspects:
            return self.waiting.head(self.seats.open_to)
        first = self.suspects.first
        return None if self.seats.running or self.constraints.awaits(first) else first

    def _seat(self, sequence: Sequence, draft: Draft, now: float) -> None:
        resumed = sequence.phase is Phase.PREEMPTED
        sequence.fetches = 0
        sequence.move(Trigger.RESUME if resumed else Trigger.ADMIT)
        row = self.seats.take(sequence)
        self._prefilling.append(sequence)
        self._prefilling.sort(key=lambda each: each.order)
        if sequence.first_scheduled is None:
            sequence.first_scheduled = now
            sequence.num_cached_tokens = sequence.num_scheduled_tokens
        draft.admitted.append(
            AdmittedRow(
                row=row,
                token_ids=tuple(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_scheduled_tokens,
                block_tables=tuple(tuple(table) for table in sequence.block_tables),
                sampling=sequence.sampling,
            )
        )
        request_id, cached = sequence.request.request_id, sequence.num_scheduled_tokens
        self.notices.append(SequenceAdmitted(request_id, sequence.index, row, cached, resumed))

    def num_scheduled(self, sequence: Sequence) -> int:
        """How many of a running sequence's tokens are computed once every planned step is done."""
        if sequence.decode_offset is None:
            return sequence.num_scheduled_tokens
        return max(sequence.num_scheduled_tokens, self.step - sequence.decode_offset + 1)

    def commit(self, result: StepResult) -> list[Progress]:
        """Bring home the oldest step in flight. Returns what each living sequence gained.

        Sequences that end by a stop id or by length are finished here; tokens computed for a sequence after its
        end are dropped.
        """
        flight = self.flights.pop(0)
        now = self._clock.now()
        self._observe(flight, now)
        self.committed_step = flight.plan.step
        if self.cache.tiers is not None:
            self.cache.tiers.settle(flight.plan.step, result.copied)
        for sequence, chunk in flight.chunks:
            self._commit_chunk(sequence, chunk, result, now)
        # Its last token is computed now, and was known before: a block is named by tokens, not by what they yield.
        for sequence in flight.filling:
            if sequence.phase is Phase.RUNNING:
                self._share(sequence, len(sequence.token_ids))
        if flight.copies:
            self.cache.states.settle(flight.copies)
        progress = self._commit_tokens(flight, result)
        if flight.plan.masked:
            for sequence, error in self.constraints.consume(progress):
                self.finish(sequence, FinishReason.ERROR, error)
        self.tally.generated_tokens += len(progress)
        if self.suspects:
            self._go_on_with_trials()
        return progress

    def _go_on_with_trials(self) -> None:
        """A suspect that is cleared stands back while others are left."""
        cleared = self.suspects.clear()
        if cleared is not None and self.suspects:
            self._preempt(cleared)

    def _commit_chunk(self, sequence: Sequence, chunk: Chunk, result: StepResult, now: float) -> None:
        if sequence.phase is Phase.FINISHED:
            return
        if chunk.row in result.prompt_logprobs:
            sequence.prompt_logprobs.update(result.prompt_logprobs[chunk.row])
        if chunk.samples and sequence.first_token is None and sequence not in self.constraints.missed:
            sequence.first_token = now
        if sequence.phase is Phase.RUNNING:
            self._share(sequence, chunk.start + chunk.length)
            if sequence.followers and chunk.samples:
                self._let_followers_go(sequence)

    def _commit_tokens(self, flight: Flight, result: StepResult) -> list[Progress]:
        scores = _by_position(result.logprobs, flight.plan)
        if flight.chunks or flight.plan.masked or flight.plan.step <= self.cut_short_at:
            return self._commit_each(flight, result.token_ids, scores)
        decoding = flight.decoding
        for tokens, token in zip(decoding.token_ids, result.token_ids, strict=True):
            tokens.append(token)
        nothing_stops = decoding.stop_ids.isdisjoint(result.token_ids)
        for sequence in flight.through if nothing_stops else decoding.sequences:
            token = sequence.token_ids[-1]
            reason = sequence.stop_reason(token)
            if reason is not None:
                self._stop(sequence, token, reason)
        return list(zip(decoding.sequences, result.token_ids, scores, strict=True))

    def _commit_each(
        self, flight: Flight, token_ids: list[int], scores: list[TokenLogprobs | None]
    ) -> list[Progress]:
        """Commit the tokens of a step whose rows may have ended since it was planned."""
        progress: list[Progress] = []
        missed = self.constraints.missed if flight.plan.masked else ()
        for sequence, token, score in zip(flight.sampling, token_ids, scores, strict=True):
            # It has ended since the step was planned: what was computed beyond the end is dropped.
            if sequence.finish_reason is not None or sequence in missed:
                continue
            tokens = sequence.token_ids
            tokens.append(token)
            progress.append((sequence, token, score))
            if token in sequence.stop_ids or len(tokens) >= sequence.max_total_tokens:
                reason = sequence.stop_reason(token)
                if reason is not None:
                    self._stop(sequence, token, reason)
        return progress

    def _stop(self, sequence: Sequence, token: int, reason: FinishReason) -> None:
        if reason is FinishReason.STOP and token in sequence.request.sampling.stop_token_ids:
            sequence.stop = token
        self.finish(sequence, reason)

    def _share(self, sequence: Sequence, num_computed: int) -> None:
        updates = self.cache.share(sequence, num_computed)
        if updates:
            assert sequence.row is not None
            self.is_settled = False
            self._remapped.setdefault(sequence.row, []).extend(updates)

    def _observe(self, flight: Flight, now: float) -> None:
        # With several steps in flight, this one could not begin before the one ahead of it was done.
        seconds = now - max(flight.planned_at, self.last_commit)
        self.last_commit = now
        num_decoding = len(flight.plan.decoding)
        prefill = flight.plan.num_tokens - num_decoding
        self.tally.computed_prompt_tokens += prefill
        if prefill or num_decoding:
            self._chunk_budget.observe(num_prefill=prefill, num_decoding=num_decoding, seconds=seconds)


def _by_position(logprobs: dict[int, TokenLogprobs], plan: StepPlan) -> list[TokenLogprobs | None]:
    rows = plan.sampling_rows
    return [logprobs.get(row) for row in rows] if logprobs else [None] * len(rows)
