"""Who computes what in the next step, and what became of the last one.

There is one rule: a sequence has tokens, some of them are computed, and a step computes some of the rest. A long prompt, a
prefix hit, a resumption after preemption and a decode are that rule with different numbers.

Theory of operation. `num_scheduled` counts the tokens of a sequence that some planned step computes; it may be one ahead of the
tokens that are known for every step in flight. `plan` makes a step from four sources, in this order:

1. Rows in the decode set compute one token each; only those at the first position of a block are looked at (`DecodeSet`).
2. Prefills that have begun go on with the tokens that are left of the step's budget, the oldest first.
3. Waiting sequences are admitted, strictly from the head of the queue, while there are tokens, rows and blocks.
   Deferred sequences do 2 and 3 behind all others.
4. What `commit` has found since the last plan goes along: rows given back, blocks exchanged for equal ones.

Most steps are the one before, one token further: nothing waits or prefills, nothing was added, ended or exchanged since, and no
row needs a block or is through. Then the scheduler `is_settled`, and looks at nothing else.

A step may be wide: rows then compute drafts beside their newest token, and yield as many tokens as were right (`speculation.py`).

Planning needs only that a token exists: its position follows from the step's number, its block is allocated before its value is
known, and the device itself feeds the value into the next step. What does need values waits for `commit`: stop ids, the names
of blocks that decoding fills, the end of a request. So a step may compute rows that have ended, whose tokens are dropped.

Nothing of a plan is taken back once it is handed out (`Draft` is still mutable, `StepPlan` is not). Where blocks run out, or one
that waits lacks what deferred ones hold, the sequence that comes last in order gives back all it has, is withdrawn from the draft,
and waits for its old place in the queue: it has no chunk in the draft yet, whose blocks another one could have found. Length is
bounded in advance, so the decode set knows when a row leaves. Who is to blame for a failed step is for `isolation.py` to say.
"""

from __future__ import annotations

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.admission import check_request, expand_request
from nanoserve.domain.scheduling.chunk_budget import ChunkBudget
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.sequence_table import Population
from nanoserve.domain.scheduling.speculation import Speculation
from nanoserve.domain.scheduling.steps import InFlightStep, Progress, Stopped, stopped_by
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.driven import Clock
from nanoserve.ports.errors import DuplicateRequestError
from nanoserve.ports.events import SequenceAdmitted
from nanoserve.ports.grammar import AT_FAULT
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import Chunk, StepPlan, StepResult


class Scheduler(Population):
    """Plans steps over device rows and KV blocks. Deterministic: the same calls give the same plans.

    Attributes:
        flights: planned steps that are not committed, the oldest first.
        committed_step: the newest step that was committed.
    """

    def __init__(self, limits: Limits, cache: KVCache, clock: Clock) -> None:
        super().__init__(limits, cache, clock)
        self.flights: list[InFlightStep] = []
        self.committed_step = 0
        self.last_commit = 0.0
        itl = limits.max_itl
        self._chunk_budget = None if itl is None else ChunkBudget(max_itl=itl, floor=limits.block_size)
        self._spare = [int(limits.watermark * pool.num_blocks) for pool in cache.allocators]
        self._rounds: list[list[Progress]] = []
        self._speculation = Speculation(self) if limits.max_width > 1 else None

    def add(self, request: Request) -> None:
        """Queue a request's sequences, or raise a `RequestRefusedError` / `BadValueError` and queue nothing."""
        if request.request_id in self.table.requests:
            raise DuplicateRequestError(f"request {request.request_id!r} is already being served")
        check_request(request, self.limits, self.cache)
        self.table.waiting.check_room(request)
        lora = self.table.loras.digest_of(request) if request.lora else b""
        self.is_settled = False
        sequences = expand_request(
            request,
            self.limits,
            self.counters.accepted,
            now=self._clock.now(),
            lora=lora,
            weights=self.table.weights,
        )
        may_start = request.constraint is None or self.constraints.open(sequences, request.constraint)
        self.table.add(sequences, may_start=may_start)
        self.counters.accepted += len(sequences)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before something in flight is committed."""
        now, decoding = self._clock.now(), self.table.decoding
        for sequence in self.table.deadlines.due(now):
            self.finish(sequence, FinishReason.TIMEOUT)
        width = self._speculation.choose_width() if self._speculation else 1
        if self.is_settled and width and not decoding.has_date(width):
            return self._repeat(width, now)
        if self.constraints.compiling or self.constraints.late:
            self._admit_compiled()
        tiers = self.cache.tiers
        for sequence in () if tiers is None else tiers.poll():
            self.table.let_go(sequence)
        if self._speculation and self.constraints.matchers:  # a grammar may have come
            width = self._speculation.choose_width()
        if not width or (self.suspects and self.flights):
            return None
        draft = Draft(self.step + 1, width)
        self._grow_decoding(draft)
        left = self.limits.max_num_batched_tokens - width * len(decoding)
        if self._chunk_budget is not None:
            left = self._chunk_budget.allowance(left, len(decoding))
        for deferred in (False, True) if self.table.has_deferred else (False,):
            left = self._continue_prefills(draft, left, deferred=deferred)
            left = self._admit(draft, left, now, deferred=deferred)
        computes_something = draft.chunks or decoding or self.table.loras.planned
        if not computes_something and not (tiers and tiers.calls_for_step(is_idle=not self.flights)):
            return None
        return self._dispatch(draft, now)

    def _repeat(self, width: int, now: float) -> StepPlan:
        """The step before, one token further."""
        self.step += 1
        members = self.table.decoding
        decoding = members.snapshot()
        plan = StepPlan(step=self.step, decoding=decoding.rows, width=width)
        members.advance(width)
        self.flights.append(InFlightStep(plan, (), decoding, [], [], now, is_exact=members.is_exact))
        self.counters.steps += 1
        return plan

    def _dispatch(self, draft: Draft, now: float) -> StepPlan:
        self.step = step = draft.step
        members, prefilling = self.table.decoding, self.table.prefilling
        decoding = members.snapshot()
        for updates in self._remapped.values():
            draft.table_updates.extend(updates)
        bound = self.constraints.matchers
        masked = self.constraints.masked_rows(draft, decoding.sequences, decoding.rows) if bound else ()
        loads = self.table.loras.take_planned() if self.table.loras.planned else ()
        plan = draft.seal(self.table.rows.released(), decoding.rows, masked, loads)
        if self.cache.tiers is not None:
            plan = self.cache.tiers.go_along(plan)
        self._remapped.clear()
        members.advance(draft.width)
        filling = members.needing_blocks(1) if members.is_exact else []
        may_be_through, through = members.ends(draft.width)
        chunks = tuple(draft.chunks)
        flight = InFlightStep(
            plan, chunks, decoding, filling, may_be_through, now, draft.copies, members.is_exact
        )
        self.flights.append(flight)
        # Those that leave are computed in this step all the same: `decoding` was taken before.
        for sequence in through:
            members.leave(sequence, step)
        for sequence, chunk in draft.chunks:
            if chunk.samples and sequence.num_scheduled_tokens + 1 < sequence.max_total_tokens:
                members.join(sequence)
        self.counters.steps += 1
        moves = self.table.waiting or prefilling or self.suspects or bound or self.cache.tiers is not None
        self.is_settled = bool(members) and not moves
        return plan

    def _grow_decoding(self, draft: Draft) -> None:
        decoding, width = self.table.decoding, draft.width
        for sequence in decoding.needing_blocks(width):
            while sequence in decoding:
                assert sequence.decode_offset is not None
                newest = decoding.reach + width - sequence.decode_offset
                lowest = newest - decoding.slack - width + 1
                end = min(newest + 1, sequence.max_total_tokens - 1)
                updates = self.cache.grow(sequence, lowest, end)
                if updates is not None:
                    draft.table_updates.extend(updates)
                    if self.cache.has_states:
                        draft.copy(self.cache.states.take(sequence, newest, decoding=True))
                    break
                # The youngest may be this one: it has then left the decode set, which ends the loop.
                self._preempt(self.table.rows.youngest(), draft)

    def _continue_prefills(self, draft: Draft, left: int, *, deferred: bool) -> int:
        for sequence in [each for each in self.table.prefilling if each.is_deferred is deferred]:
            if left <= 0:
                break
            # One that is further back may have been preempted for the blocks of one before it.
            if sequence.phase is Phase.RUNNING:
                left -= self._compute_chunk(sequence, draft, left)
        return left

    def _compute_chunk(self, sequence: Sequence, draft: Draft, most: int) -> int:
        start = sequence.num_scheduled_tokens
        if self.cache.has_states:
            self.cache.states.keep_for(sequence, self._next_to_admit(), 0)
        end = self.cache.chunk_end(sequence, start, most)
        while (updates := self.cache.grow(sequence, start, end)) is None:
            victim = self.table.rows.youngest()
            if victim is sequence:
                return 0
            self._preempt(victim, draft)
        draft.table_updates.extend(updates)
        if self.cache.has_states:
            draft.copy(self.cache.states.take(sequence, start, decoding=False))
        self.cache.promises.give(sequence, start, end, draft.step)
        if draft.compute(sequence, start, end).is_last:
            self.table.prefilling.remove(sequence)
        return end - start

    def _admit(self, draft: Draft, left: int, now: float, *, deferred: bool) -> int:
        rows = self.table.rows
        while left > 0 and (rows.free or (rows.has_deferred and not deferred)):
            sequence = self._next_to_admit()
            if sequence is None or sequence.is_deferred is not deferred:
                break
            if not self.table.may_sit(sequence, draft.step, self.committed_step):
                break
            shared = self.cache.match(sequence)
            start = shared * self.limits.block_size
            if self.cache.has_states:
                copies = [*draft.copies, *(each for flight in self.flights for each in flight.copies)]
                if self.cache.states.is_expected(sequence, start, self.table.prefilling, copies):
                    break
            chunk_end = self.cache.chunk_end(sequence, start, left)
            if chunk_end == start:
                break  # it is computed whole, in a step that has room for it
            spare = self._spare if rows.running else [0] * len(self._spare)
            if not rows.free or not self.cache.can_admit(sequence, shared, chunk_end, spare=spare):
                if deferred or not rows.has_deferred:
                    break
                self._preempt(rows.youngest(), draft)  # which makes way
                continue
            tiers = None if self.suspects else self.cache.tiers
            run = [] if tiers is None else tiers.worth_fetching(sequence, shared)
            if run and tiers is not None and tiers.num_waiting >= len(rows.free):
                break  # what comes in for more sequences than there are rows would displace what others need
            self.table.waiting.pop(sequence)
            if run and tiers is not None and tiers.fetch(sequence, shared, run):
                self.table.hold(sequence)
                continue
            draft.copy(self.cache.admit(sequence, shared, chunk_end))
            sequence.num_scheduled_tokens = start
            self._seat(sequence, draft, now)
            left -= self._compute_chunk(sequence, draft, left)
        return left

    def _next_to_admit(self) -> Sequence | None:
        if not self.suspects:
            return self.table.waiting.head(self.table.rows.open_to)
        first = self.suspects.first
        return None if self.table.rows.running or self.constraints.awaits(first) else first

    def _seat(self, sequence: Sequence, draft: Draft, now: float) -> None:
        resumed = sequence.phase is Phase.PREEMPTED
        sequence.fetches = 0
        row = self.table.seat(sequence)
        if sequence.first_scheduled is None:
            sequence.first_scheduled, sequence.num_cached_tokens = now, sequence.num_scheduled_tokens
        draft.admit(sequence, row)
        request_id, cached = sequence.request.request_id, sequence.num_scheduled_tokens
        self.notices.append(SequenceAdmitted(request_id, sequence.index, row, cached, resumed))

    def commit(self, result: StepResult) -> list[Progress]:
        """Bring home the oldest step in flight. Returns what each living sequence gained; of a wide step, its first token.

        Sequences that end by a stop id or by length are finished here; tokens computed for one after its end are dropped.
        """
        flight = self.flights.pop(0)
        now = self._clock.now()
        self._observe(flight, now)
        self.committed_step = flight.plan.step
        self.table.decoding.land(flight.plan.width)
        if self.cache.tiers is not None:
            self.cache.tiers.settle(flight.plan.step, result.copied)
        if flight.chunks:
            self.cache.promises.settle(flight.plan.step, result.broken)
        for sequence, chunk in flight.chunks:
            self._commit_chunk(sequence, chunk, result, now)
        # Its last token is computed now, and was known before: a block is named by tokens, not by what they yield.
        for sequence in flight.filling:
            if sequence.phase is Phase.RUNNING and sequence not in self.constraints.missed:
                self._share(sequence, len(sequence.token_ids))
        if flight.copies:
            self.cache.states.settle(flight.copies)
        progress = self._land(flight, result)
        if flight.plan.masked:
            for sequence, error in self.constraints.consume(progress):
                self.finish(sequence, FinishReason.ERROR, error)
        self.counters.generated_tokens += len(progress)
        if self.suspects:
            cleared = self.suspects.acquit()
            if cleared is not None and self.suspects:  # it stands back while others are left
                self._preempt(cleared)
        return progress

    def _land(self, flight: InFlightStep, result: StepResult) -> list[Progress]:
        if flight.is_exact:
            progress, stopped = flight.land(result, self.constraints.missed, self.cut_short_at)
            self._end(stopped)
            return progress
        assert self._speculation is not None
        self._speculation.note(flight, result)
        self._rounds = flight.rounds(result, self.constraints.missed)
        progress = self._land_round()
        self._end(flight.land_vectors(result))
        return progress

    def commit_more(self) -> list[Progress]:
        """What living sequences gained by the next token of the step that was committed last; empty when all of it is home."""
        progress = self._land_round() if self._rounds else []
        self.counters.generated_tokens += len(progress)
        return progress

    def _land_round(self) -> list[Progress]:
        """Append one token of a step to each sequence that has one and lives, and end those that end with it."""
        progress = (
            [each for each in self._rounds.pop(0) if each[0].finish_reason is None] if self._rounds else []
        )
        for sequence, token, _ in progress:
            # As in `commit`: its last token is computed now, and was known before.
            if sequence.phase is Phase.RUNNING and not len(sequence.token_ids) % self.limits.block_size:
                self._share(sequence, len(sequence.token_ids))
            sequence.token_ids.append(token)
        self._end(stopped_by([each[0] for each in progress]))
        return progress

    def _end(self, stopped: list[Stopped]) -> None:
        for sequence, token, reason in stopped:
            if reason is FinishReason.STOP and token in sequence.request.sampling.stop_token_ids:
                sequence.stop = token
            self.finish(sequence, reason)

    def _commit_chunk(self, sequence: Sequence, chunk: Chunk, result: StepResult, now: float) -> None:
        if sequence.phase is Phase.FINISHED:
            return
        sequence.prompt_logprobs.update(result.prompt_logprobs.get(chunk.row, {}))
        if chunk.is_last and sequence.first_token is None and sequence not in self.constraints.missed:
            sequence.first_token = now
        if sequence.phase is Phase.RUNNING:
            self._share(sequence, chunk.start + chunk.length - (sequence in self.constraints.missed))

    def _observe(self, flight: InFlightStep, now: float) -> None:
        # With several steps in flight, this one could not begin before the one ahead of it was done.
        seconds = now - max(flight.planned_at, self.last_commit)
        self.last_commit = now
        num_tokens, num_decoding = flight.plan.num_tokens, len(flight.plan.decoding)
        prefill = num_tokens - num_decoding * flight.plan.width
        self.counters.computed_prompt_tokens += prefill
        if self._chunk_budget is not None and num_tokens:
            self._chunk_budget.observe(num_prefill=prefill, num_decoding=num_decoding, seconds=seconds)

    def fail(self, plan: StepPlan, guilty_rows: tuple[int, ...], message: str) -> list[Sequence]:
        """A step in flight failed. The guilty, which are returned, end with an error; all others are computed again.

        Where none can be named, all become suspects. Nothing stays in flight.
        """
        number = next(number for number, each in enumerate(self.flights) if each.plan is plan)
        guilty = self.suspects.blame(self.flights[number], self.flights[:number], guilty_rows)
        for sequence in guilty:
            self.finish(sequence, FinishReason.ERROR, message)
        self.preempt_all()
        return guilty

    def preempt_all(self) -> None:
        """Give every row back; all that run are computed again. Steps in flight are forgotten.

        The runner may never have seen the rows that those steps released, so the next step releases all there are.
        """
        self.cache.forget_steps([each for flight in self.flights for each in flight.copies])
        self.flights.clear()
        # Nothing is in flight any more, so sequences of forgotten steps may be admitted again.
        self.committed_step = self.step
        self._rounds.clear()
        for sequence in list(self.table.rows.running):
            self._preempt(sequence)
        self.table.decoding.forget_flights()
        self.table.release_all()

    def draw(self, ticket: object) -> list[Sequence]:
        """Draw the one step in flight, which has masked rows; returns whose mask is late, and who compute their newest token again."""
        missed_before = self.constraints.missed
        drawn = self.constraints.draw(self.flights[0], ticket)
        for sequence in drawn.stuck:
            self.finish(sequence, FinishReason.ERROR, f"{AT_FAULT}leaves no token to draw")
        self.counters.late_masks += len(drawn.late)
        late = [each for each in drawn.late if each.phase is Phase.RUNNING]
        again = [each for each in late if self.cache.may_compute_again(each)]
        for sequence in again:
            self.table.repeat(sequence, self.step, sits_out=sequence in missed_before)
        for sequence in [each for each in late if each not in again]:
            self._preempt(sequence)
        return again

    def _admit_compiled(self) -> None:
        for sequence, error in self.constraints.arrivals():
            if error is None:
                self.table.let_go(sequence)
                continue
            for each in self.table.requests[sequence.request.request_id].copy():
                self.finish(each, FinishReason.ERROR, error)
