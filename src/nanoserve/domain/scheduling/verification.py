"""Deterministic sequences among others: decoded by ordinary steps, verified by invariant ones (`ports/step.py`).

The idea is LLM-42's (arXiv 2601.17768). Invariant steps compute a token with the same bits in any company, but slowly where rows decode.
So a deterministic sequence goes through three states, over and over, until it ends:

1. It prefills: an invariant step computes its known tokens that are not computed yet. These are its prompt, all of its tokens after a
   preemption, or its newest token and the tokens that it has decoded since. The step yields tokens, and only these count.
2. It waits until that step is committed, because only then is it known how many tokens there are.
3. It decodes as others do, for at most `most_unverified` tokens. They stay on its row, and the scheduler does not look at them.

The keys and values that an ordinary step wrote lie behind all that invariant steps computed, and the next invariant step writes them
again. Blocks get names only as far as invariant steps have computed. So whatever happens to the sequence, it continues from bits that no
other sequence influenced.

Invariant and ordinary steps take turns while both have work. An invariant step also takes sequences that have decoded half of what they
may, so that all are verified at once. On a GPU rows that decode go along in it: so nobody waits for others' verification.

On a GPU invariant steps decode nearly as fast as others while rows are short. Where a fifth of the rows or, if some are long, most of them are
deterministic, all steps are invariant (`always`): what rows decode counts at once then.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.scheduling.draft import Draft
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.domain.scheduling.rounds import Rounds
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.scheduling.steps import InFlightStep, Progress, Stopped
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.step import StepResult

LEAST_WINDOW: Final = 3
"""Tokens that a sequence may decode at least, if it may any."""
_ORDINARY: Final = "ordinary"
_APART: Final = "invariant, of chunks alone"
_BESIDE: Final = "invariant, of all"
SHORT: Final = 2048
"""Tokens of a row up to which invariant steps read its keys and values in little more time than others, which cut them into parts."""
MOST_TOKENS: Final = 512
"""From so many on, an invariant step of a GPU takes longer in proportion to its tokens: nothing is gained by more."""


class Verification:
    """The deterministic sequences of a table.

    All may decode as many tokens between two invariant steps: fewer where these are often wrong, or where the sequences are many.

    Attributes:
        newest: the newest invariant step that was planned.
        always: whether all steps are invariant.
    """

    def __init__(self, limits: Limits, cache: KVCache, table: SequenceTable, rounds: Rounds) -> None:
        self._limits, self._table, self._rounds = limits, table, rounds
        self._most = self._window = limits.most_unverified
        self._may_decode = limits.invariant_decoding and limits.max_width == 1
        self._takes_along = self._may_decode and not cache.has_states
        self.always = False
        self._home: list[Sequence] = []
        self.newest = 0

    def drafts(self, plain: Draft) -> Iterator[Draft]:
        """Drafts of the next step, to be filled in this order until one computes something; `plain` is the ordinary one."""
        updates = plain.table_updates
        for kind in self._kinds():
            draft = plain
            if kind is not _ORDINARY:
                draft = Draft(
                    plain.step,
                    invariant=True,
                    decodes=kind is _BESIDE,
                    suffices=self.always and kind is _BESIDE,
                )
            # Of one that computes nothing the blocks remain that rows which decode have got.
            draft.table_updates = updates
            yield draft
            updates = draft.table_updates

    def _kinds(self) -> tuple[str, ...]:
        """The kinds of step to try next. Where rows might not fit beside what is to be verified, one goes without them."""
        table = self._table
        self._choose_always()
        if self.always:
            left = self._limits.max_num_batched_tokens - len(table.decoding)
            is_tight = any(each.num_unverified >= left for each in table.prefilling)
            return (_APART, _BESIDE) if is_tight and table.step != self.newest else (_BESIDE,)
        first = table.next_in_line()
        waits = first is not None and first.is_deterministic
        if not waits and not any(each.is_deterministic for each in table.prefilling):
            return (_ORDINARY,)
        invariant = (_BESIDE, _APART) if self._takes_along else (_APART,)
        return (_ORDINARY, *invariant) if table.step == self.newest else (*invariant, _ORDINARY)

    def _choose_always(self) -> None:
        """Decide whether all steps are invariant from now on; then what deterministic rows decode counts at once."""
        asking, running = self._table.num_deterministic, self._table.rows.running
        are_short = all(len(each.token_ids) <= SHORT for each in running)
        shares = (5, 7) if are_short else (2, 3)  # to begin with, and to go on
        always = self._may_decode and shares[self.always] * asking > len(running)
        if self.always and not always:
            for sequence in self._table.decoding.snapshot().sequences:
                if sequence.is_deterministic and not sequence.is_tentative:
                    self._table.decoding.leave(sequence, self._table.step)
                    self._home.append(sequence)
        self.always = always

    def note_planned(self, draft: Draft) -> None:
        """An invariant step is planned, or the first one after them that is not; rows whose prompts it ends decode from the next one on only where all steps are invariant."""
        self.always &= draft.invariant
        if draft.invariant:
            self.newest = draft.step
        for sequence, chunk in draft.chunks:
            if sequence.is_deterministic:
                joins = self.always and not chunk.unverified
                sequence.decode_end = sequence.max_total_tokens if joins else 0
                sequence.is_tentative = bool(chunk.unverified)

    def companions(self, left: int) -> Iterator[Sequence]:
        """Those that decode, and from now on no more, as they may be verified before they must; together they have fewer tokens than are `left`."""
        decoding = self._table.decoding
        for sequence in decoding.snapshot().sequences:
            # One of those before it may have needed its blocks.
            if not sequence.is_tentative or sequence not in decoding:
                continue
            count = decoding.num_planned(sequence) + 1 - len(sequence.token_ids)
            if 2 * count > self._window_of(sequence) and count < left:
                left -= count + 1
                decoding.leave(sequence, self._table.step)
                self.verify(sequence)
                yield sequence

    def land(self, flight: InFlightStep, result: StepResult) -> tuple[list[Progress], list[Stopped]]:
        """As `InFlightStep.land`, of an invariant step and each row's first token; the rounds have the others."""
        missed, self._table.is_settled = self._table.constraints.missed, False
        self._home += [each for each, chunk in flight.chunks if chunk.samples and each not in missed]
        if decoded := sum(each.unverified for _, each in flight.chunks):
            counts = result.counts[: len(result.counts) - len(flight.plan.decoding)]
            wrong = decoded + len(counts) - sum(counts)
            if 5 * wrong > decoded:
                self._window = max(3 * self._window // 4, LEAST_WINDOW)
            elif 10 * wrong < decoded:
                self._window = min(self._window + 1, self._most)
        return self._rounds.land(flight, result)

    def bring_home(self, committed_step: int) -> None:
        """Those whose newest step is committed decode on what it gave them."""
        home, self._home = self._home, []
        for sequence in home:
            if sequence.last_step > committed_step:
                self._home.append(sequence)
            elif sequence.num_scheduled_tokens + 1 == len(sequence.token_ids):
                self.go_on(sequence)

    def go_on(self, sequence: Sequence) -> None:
        """All tokens of a sequence but the newest are computed, and that is to be: if it runs, it decodes, unless only an invariant step may compute it."""
        table = self._table
        if sequence.phase is not Phase.RUNNING or sequence in table.decoding or sequence in table.prefilling:
            return
        sequence.is_tentative = sequence.is_deterministic and not self.always
        sequence.decode_end = sequence.max_total_tokens
        if sequence.is_tentative:
            known = len(sequence.token_ids)
            sequence.decode_end = min(known + self._window_of(sequence), sequence.max_total_tokens - 1)
            if sequence.decode_end <= known:
                self.verify(sequence)
                return
        table.is_settled = False
        table.decoding.join(sequence)

    def _window_of(self, sequence: Sequence) -> int:
        """How many tokens a sequence may decode now."""
        shared = MOST_TOKENS // max(self._table.num_deterministic, 1) - 1
        return min(self._window, max(shared, LEAST_WINDOW), sequence.most_unverified)

    def verify(self, sequence: Sequence) -> None:
        """The next chunk of a deterministic sequence that decodes no more is its newest token, and what it has decoded behind that."""
        sequence.num_unverified = sequence.num_scheduled_tokens + 1 - len(sequence.token_ids)
        bisect.insort(self._table.prefilling, sequence, key=lambda each: each.order)
