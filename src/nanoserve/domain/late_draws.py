"""Steps with rows that follow a grammar: they are drawn when their masks are made (`scheduling/constraints.py`).

The mask of a row depends on the value of its last token, its forward pass does not. So such a step is submitted like any other,
and drawn as soon as all steps before it are committed. Until then no further step is planned.
"""

from __future__ import annotations

from nanoserve.domain.scheduling.scheduler import Scheduler
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.domain.tracing.recorder import Recorder
from nanoserve.ports.grammar import AT_FAULT
from nanoserve.ports.request import FinishReason


class LateDraws:
    """The step with masked rows that is in flight, if there is one.

    Attributes:
        is_undrawn: whether there is one that is not drawn yet; it is the newest in flight.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_undrawn = False

    def draw(self, ticket: object, recorder: Recorder | None, *, begin: bool) -> None:
        """Draw it, or only `begin` its masks. Rows with late masks compute their newest token again; the recorder notes it."""
        constraints, table = self._scheduler.constraints, self._scheduler.table
        missed_before, flight = constraints.missed, self._scheduler.flights[0]
        if begin:
            constraints.begin(flight)
            return
        self.is_undrawn = False
        drawn = constraints.draw(flight, ticket)
        for sequence, reason in drawn.stuck.items():
            table.finish(sequence, FinishReason.ERROR, f"{AT_FAULT}{reason.removeprefix(AT_FAULT)}")
        table.counters.late_masks += len(drawn.late)
        late = [each for each in drawn.late if each.phase is Phase.RUNNING]
        again = [each for each in late if self._may_compute_again(each)]
        # A wide step gives less than its width in any case, which is seen when it lands, unless it was to bring the last token.
        wide = flight.decoding.sequences if flight.plan.width > 1 else ()
        for sequence in again:
            if sequence not in wide or sequence in missed_before or sequence not in table.decoding:
                self._repeat(sequence, sits_out=sequence in missed_before)
        for sequence in [each for each in late if each not in again]:
            table.preempt(sequence)
        if recorder is not None:
            recorder.note_repeated([each for each in again if each not in wide])

    def _may_compute_again(self, sequence: Sequence) -> bool:
        """True if its newest token may be computed once more, over what is written: no state has taken it in, no named block has it."""
        cache, newest = self._scheduler.cache, len(sequence.token_ids) - 1
        blocks = zip(cache.allocators, sequence.block_tables, strict=True)
        return not cache.has_states and not any(
            pool.is_named(table[newest // cache.block_size]) for pool, table in blocks
        )

    def _repeat(self, sequence: Sequence, *, sits_out: bool) -> None:
        """Have a row compute its newest token again, in the step after the newest planned one, or when its mask is there."""
        table, decoding = self._scheduler.table, self._scheduler.table.decoding
        if sequence in decoding and not sits_out:
            decoding.repeat(sequence)
            return
        if sequence in decoding:
            decoding.leave(sequence, table.step)
        sequence.num_scheduled_tokens = len(sequence.token_ids) - 1
        if not sits_out:
            self._scheduler.verification.go_on(sequence)
