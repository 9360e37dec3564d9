"""Plans the next step, and commits the last one.

There is one rule: a sequence has tokens, some of them are computed, and a step computes some of the rest. A long prompt, a
prefix hit, a resumption after preemption and a decode are that rule with different numbers.

Theory of operation. `num_scheduled` counts the tokens of a sequence that some planned step computes; it may be one ahead of the
tokens that are known for every step in flight. `plan` makes a step from four sources, in this order:

1. Rows in the decode set compute one token each; only those at the first position of a block are looked at (`DecodeSet`).
2. Prefills that have begun go on with the tokens that are left of the step's budget, the oldest first.
3. Waiting sequences are admitted, strictly from the head of the queue, while there are tokens, rows and blocks.
4. What `commit` has found since the last plan goes along: rows given back, blocks exchanged for equal ones.

Most steps are the one before, one token further: nothing waits or prefills, nothing was added, ended or exchanged since, and no
row needs a block or is through. Then the table `is_settled`, and the scheduler looks at nothing else.

Planning needs only that a token exists: its position follows from the step's number, its block is allocated before its value is
known, and the device itself feeds the value into the next step. Everything that needs values waits for `commit`: stop ids, the
names of blocks that decoding fills, the end of a request. So a step may compute rows that have ended, whose tokens are dropped.

Where blocks run out, or one that waits lacks what deferred ones hold, the sequence that comes last in order gives back all it has,
is withdrawn from the draft, and waits at its old place. It has no chunk in the draft yet, whose blocks another one could have found.

A first reader can skip what has a file of its own: what is asked of a request (`admission.py`), deferred sequences and chunks under a bound of time
(`prompt_shares.py`), drafts (`speculation.py`), grammars (`constraints.py`), deterministic sequences (`verification.py`), copies in other tiers and
recurrent states (`kv`), and who is to blame for a failed step (`isolation.py`). Next: where sequences stand (`sequence_table.py`).
"""

from __future__ import annotations

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.admission import accept_request
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.prompt_shares import PromptShares
from nanoserve.domain.scheduling.rounds import Rounds
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.speculation import Speculation
from nanoserve.domain.scheduling.steps import NONE_DECODE, InFlightStep, Progress, Stopped
from nanoserve.domain.scheduling.verification import Verification
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.driven import Clock
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.step import StepPlan, StepResult


class Scheduler:
    """Plans steps over device rows and KV blocks. Deterministic: the same calls give the same plans.

    Attributes:
        table: where each sequence stands.
        flights: planned steps that are not committed, the oldest first.
        committed_step: the newest step that was committed.
    """

    def __init__(
        self, limits: Limits, cache: KVCache, clock: Clock, constraints: Constraints | None = None
    ) -> None:
        self.limits, self.cache, self._clock = limits, cache, clock
        self.constraints = constraints or Constraints()
        self.table = SequenceTable(limits, cache, clock, self.constraints)
        self.suspects, self.counters = self.table.suspects, self.table.counters
        self.flights: list[InFlightStep] = []
        self.committed_step, self.last_commit = 0, 0.0
        self._spare = [int(limits.watermark * pool.num_blocks) for pool in cache.allocators]
        self._shares = PromptShares(limits, self.table, cache)
        self.rounds = rounds = Rounds(cache, self.table)
        self.speculation = Speculation(limits, cache, self.table, rounds) if limits.max_width > 1 else None
        self.verification = Verification(limits, cache, self.table, rounds)

    def add(self, request: Request) -> None:
        """Queue a request's sequences, or raise a `RequestRefusedError` / `BadValueError` and queue nothing."""
        sequences = accept_request(request, self.limits, self.cache, self.table, now=self._clock.now())
        may_start = request.constraint is None or self.constraints.open(sequences, request.constraint)
        self.table.add(sequences, may_start=may_start)
        if request.is_suspect:
            self.suspects.accuse(sequences)
            for each in list(self.table.rows.running):
                self.table.preempt(each)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed before something in flight is committed."""
        now, table, drafter = self._clock.now(), self.table, self.speculation
        for sequence in table.deadlines.due(now):
            table.finish(sequence, FinishReason.TIMEOUT)
        if table.num_deterministic:
            self.verification.bring_home(self.committed_step)
        if self.constraints.compiling or self.constraints.late or self.cache.tiers is not None:
            self._let_arrived_go()
        width = 1 if drafter is None else drafter.choose_width()
        if width and table.is_settled and not (self.cache.naming.exchanged or table.decoding.has_date(width)):
            return self._repeat(width, now)
        if not width or (self.suspects and self.flights):
            return None
        plain = Draft(table.step + 1, width, drafts={} if drafter is None else drafter.drafts)
        for draft in self.verification.drafts(plain) if table.num_deterministic else (plain,):
            self._fill(draft, now)
            if draft.chunks or (draft.suffices and table.decoding):
                return self._dispatch(draft, now)
        calls = self.cache.tiers and self.cache.tiers.calls_for_step(is_idle=not self.flights)
        return self._dispatch(draft, now) if table.loras.planned or calls else None

    def _fill(self, draft: Draft, now: float) -> None:
        """Find out what the next step computes."""
        has_deferred = self.table.has_deferred
        if has_deferred:
            self._shares.make_way(draft, now)
        if draft.decodes:
            self._grow_decoding(draft)
        left = self._shares.tokens(draft)
        for deferred in (False, True) if has_deferred else (False,):
            left = self._shares.tokens_of_deferred(draft, left) if deferred else left
            left = self._continue_prefills(draft, left, deferred=deferred)
            left = self._admit(draft, left, now, deferred=deferred)
        if draft.invariant and draft.chunks:
            for sequence in self.verification.companions(left):
                left -= self._compute_chunk(sequence, draft, left)

    def _let_arrived_go(self) -> None:
        """Release sequences whose grammar, mask or blocks from another tier are there."""
        for sequence, error in self.constraints.arrivals():
            if error is not None:
                self.table.finish(sequence, FinishReason.ERROR, error)
            elif not self.table.let_go(sequence):
                self.verification.go_on(sequence)
        for sequence in () if self.cache.tiers is None else self.cache.tiers.poll():
            self.table.let_go(sequence)

    def _repeat(self, width: int, now: float) -> StepPlan:
        """The step before, one token further."""
        members = self.table.decoding
        self.table.step = step = self.table.step + 1
        decoding = members.snapshot()
        plan = StepPlan(step=step, decoding=decoding.rows, width=width, invariant=self.verification.always)
        members.advance(width)
        self.flights.append(InFlightStep(plan, (), decoding, now, is_exact=members.is_exact))
        self.counters.steps += 1
        return plan

    def _grow_decoding(self, draft: Draft) -> None:
        """Give decoding rows the blocks that they reach, one with a grammar for its token before, too; if none is free, preempt the youngest."""
        decoding = self.table.decoding
        for sequence in decoding.needing_blocks(draft.width):
            while sequence in decoding:
                start, end = decoding.span(sequence, draft.width)
                if sequence.is_tentative:  # what is verified reads from there on
                    start = len(sequence.token_ids) - 1
                updates = self.cache.grow(sequence, start - (sequence in self.constraints.matchers), end)
                if updates is not None:
                    draft.table_updates += updates
                    if self.cache.has_states and start == decoding.num_planned(sequence):
                        draft.copy(self.cache.states.take(sequence, start, decoding=True))
                    break
                # The youngest may be this one: it has then left the decode set, which ends the loop.
                self.table.preempt(self.table.rows.youngest(), draft)

    def _continue_prefills(self, draft: Draft, left: int, *, deferred: bool) -> int:
        """Compute further chunks of prompts; returns the tokens that are left."""
        ours = [each for each in self.table.prefilling if draft.takes(each)]
        for sequence in [each for each in ours if each.is_deferred is deferred]:
            if left <= 0:
                break
            # One that is further back may have been preempted for the blocks of one before it.
            if sequence.phase is Phase.RUNNING and sequence.num_unverified < left:
                left -= self._compute_chunk(sequence, draft, left)
        return left

    def _compute_chunk(self, sequence: Sequence, draft: Draft, most: int) -> int:
        start = sequence.num_scheduled_tokens - sequence.num_unverified
        if self.cache.has_states:
            self.cache.states.keep_for(sequence, self.table.next_in_line(), 0)
        end = self.cache.chunk_end(sequence, start, most)
        while (updates := self.cache.grow(sequence, start, end + sequence.num_unverified)) is None:
            victim = self.table.rows.youngest()
            if victim is sequence or victim.last_step == draft.step:
                return 0
            self.table.preempt(victim, draft)
        draft.table_updates += updates
        if self.cache.has_states:
            draft.copy(self.cache.states.take(sequence, start, decoding=False))
        self.cache.naming.give(sequence, start, end, draft.step)
        chunk = draft.compute(sequence, start, end)
        if end + sequence.awaits_grammar == len(sequence.token_ids):
            self.table.prefilling.remove(sequence)
        return chunk.length

    def _admit(self, draft: Draft, left: int, now: float, *, deferred: bool) -> int:
        """Give rows to those that wait, and compute their first chunks; returns the tokens that are left."""
        table, rows, cache = self.table, self.table.rows, self.cache
        while left > 0 and (rows.free or self.constraints.compiling or (rows.has_deferred and not deferred)):
            sequence = table.next_in_line()
            if sequence is None or not table.may_sit(sequence, draft.step, self.committed_step):
                break
            if sequence.is_deferred is not deferred or not draft.takes(sequence):
                break
            shared = cache.match(sequence)
            start = shared * self.limits.block_size
            chunk_end = cache.chunk_end(sequence, start, left)
            if chunk_end == start:
                break  # it is computed whole, in a step that has room for it
            copies = [draft.copies, *(each.copies for each in self.flights)] if cache.has_states else ()
            if copies and cache.states.is_expected(sequence, start, table.prefilling, copies):
                break
            spare = self._spare if rows.running else [0] * len(self._spare)
            if not rows.free or not cache.can_admit(sequence, shared, chunk_end, spare=spare):
                if not self._shares.make_room(sequence, draft):
                    break
                continue
            tiers = None if self.suspects else cache.tiers
            if tiers and (run := tiers.worth_fetching(sequence, shared)):
                if tiers.num_waiting >= len(rows.free):
                    break  # what comes in for more sequences than there are rows would displace what others need
                if tiers.fetch(sequence, shared, run):
                    table.waiting.pop(sequence)
                    table.hold(sequence)
                    continue
            table.waiting.pop(sequence)
            draft.copy(cache.admit(sequence, shared, chunk_end))
            sequence.num_scheduled_tokens = start
            draft.admit(sequence, table.seat(sequence, now))
            left -= self._compute_chunk(sequence, draft, chunk_end - start)  # has blocks for no more
        return left

    def _dispatch(self, draft: Draft, now: float) -> StepPlan:
        """Seal the draft, and move sequences that begin or end decoding."""
        table, members, tiers = self.table, self.table.decoding, self.cache.tiers
        table.step = draft.step
        decoding = members.snapshot() if draft.decodes else NONE_DECODE
        draft.table_updates += self.cache.naming.take_exchanged()
        bound = self.constraints.matchers
        masked = self.constraints.masked_rows(draft, decoding.sequences, decoding.rows) if bound else ()
        loads = table.loras.take_planned() if table.loras.planned else ()
        plan = draft.seal(table.rows.released(), decoding, masked, loads)
        if tiers is not None:
            plan = tiers.go_along(plan)
        flight = InFlightStep(plan, tuple(draft.chunks), decoding, now, draft.copies)
        self.flights.append(flight)
        if draft.invariant or self.verification.always:
            self.verification.note_planned(draft)
        if draft.decodes or not draft.chunks:  # one of adapters or blocks alone lands as one that decodes
            for sequence in members.follow(flight):
                if sequence.is_tentative:
                    self.verification.verify(sequence)
        self.counters.steps += 1
        moves = table.waiting or table.prefilling or self.suspects or bound or tiers is not None
        table.is_settled = bool(members) and not moves
        return plan

    def commit(self, result: StepResult) -> list[Progress]:
        """Commit the oldest step in flight. Returns what each living sequence gained; of a wide step, its first token.

        Sequences that end by a stop id or by length are finished here; tokens computed for one after its end are dropped.
        """
        flight, now, drafter = self.flights.pop(0), self._clock.now(), self.speculation
        if self._shares.budget is not None:
            self._shares.budget.observe_step(flight, self.last_commit, now)
        self.last_commit = now
        self.committed_step = flight.plan.step
        self._note_written(flight, result, now)
        if flight.plan.invariant and flight.chunks:
            progress, stopped = self.verification.land(flight, result)
        elif drafter is None:
            progress, stopped = flight.land(result, self.constraints.missed, self.table.cut_short_at)
        else:
            progress, stopped = drafter.land(flight, result)
        for sequence, _, _ in progress if flight.chunks or flight.plan.masked else ():
            if sequence.first_token is None:
                sequence.first_token = now
        self._gain(progress, stopped)
        if self.suspects and (cleared := self.suspects.acquit()):
            self.table.preempt(cleared)
        return progress

    def _note_written(self, flight: InFlightStep, result: StepResult, now: float) -> None:
        """Name the blocks and states that a step has computed and copied."""
        step, cache, missed = flight.plan.step, self.cache, flight.plan.masked and self.constraints.missed
        if cache.tiers is not None:
            cache.tiers.settle(step, result.copied)
        if flight.chunks:
            cache.naming.settle(step, result.broken)
        for sequence, chunk in flight.chunks:
            if not flight.plan.invariant or chunk.start < sequence.num_prompt_tokens:
                self.counters.computed_prompt_tokens += chunk.length
            if sequence.phase is Phase.RUNNING:
                has_missed = sequence in missed
                cache.naming.share(sequence, chunk.start + chunk.length - chunk.unverified - has_missed)
            if chunk.pools and sequence.phase is not Phase.FINISHED:  # it ends with the vector of its prompt
                sequence.first_token = now
                self.table.finish(sequence, FinishReason.STOP)
        # Its last token is computed now, and was known before: a block is named by tokens, not by what they yield.
        for sequence in flight.filling:
            if sequence.phase is Phase.RUNNING and sequence not in missed and not sequence.is_tentative:
                cache.naming.share(sequence, len(sequence.token_ids))
        if flight.copies:
            cache.states.settle(flight.copies)

    def commit_more(self) -> list[Progress]:
        """Return what living sequences gained by the next token of the step that was committed last; empty when all of it is appended."""
        return self._gain(*self.rounds.land_more()) if self.rounds.left else []

    def _gain(self, progress: list[Progress], stopped: list[Stopped]) -> list[Progress]:
        """Count the sequences' gains, and end those that have stopped."""
        self.counters.generated_tokens += len(progress)
        for sequence, token, reason in stopped:
            if reason is FinishReason.STOP and token in sequence.request.sampling.stop_token_ids:
                sequence.stop = token
            self.table.finish(sequence, reason)
        for sequence, error in self.constraints.consume(progress) if self.constraints.matchers else ():
            self.table.finish(sequence, FinishReason.ERROR, error)
        return progress
