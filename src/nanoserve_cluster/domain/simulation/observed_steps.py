"""Reads from a step log what each step computed, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from nanoserve.ports.trace import PlannedStep, Snapshot, TraceRecord, Turn
from nanoserve_cluster.ports.step_cost import StepWork, chunk_pairs


@attrs.frozen
class ObservedStep:
    """One step of a real engine; `seconds` from the end of the step before it to its own."""

    work: StepWork
    seconds: float


def observed_steps(records: Iterable[TraceRecord]) -> Iterator[ObservedStep]:
    """The steps whose time is known: those that follow on another one, while the engine had something to do.

    A log has the end of every turn. A turn brings one step home, and begins when the one before it has ended; so the time
    between two ends is the step's own, with what the engine does around it, unless the engine has rested between them.
    """
    progress = _Progress(Snapshot(at=0.0))
    ended: float | None = None
    for record in records:
        if isinstance(record, Snapshot):
            progress, ended = _Progress(record), None
        elif not isinstance(record, Turn):
            ended = None
        else:
            work = progress.apply(record)
            if work is not None and ended is not None and record.at > ended:
                yield ObservedStep(work, record.at - ended)
            rests = work is None or not progress.living
            ended = None if rests else record.at


class _Progress:
    """The computed tokens of each sequence, and the work of the planned steps."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.living = {each.key for each in snapshot.sequences}
        self._computed = {each.key: each.num_scheduled_tokens for each in snapshot.sequences}
        self._decoding: tuple[int, ...] = ()
        self._planned: dict[int, StepWork] = {}

    def apply(self, turn: Turn) -> StepWork | None:
        """The work of the step that the turn collected, where it is known."""
        self.living.update(arrival.key for arrival in turn.arrived)
        for what in turn.happened:
            if isinstance(what, PlannedStep):
                self._planned[what.step] = self._work(what)
        for ending in turn.ended:
            self.living.discard(ending.key)
            self._computed.pop(ending.key, None)
        return None if turn.committed is None else self._planned.pop(turn.committed, None)

    def _work(self, planned: PlannedStep) -> StepWork:
        computed = self._computed
        if planned.decoding is not None:
            self._decoding = planned.decoding
        context = 0
        for key in self._decoding:
            computed[key] = computed.get(key, 0) + 1
            context += computed[key]
        tokens = pairs = rows = 0
        for chunk in planned.chunks:
            computed[chunk.key] = chunk.start + chunk.length
            tokens += chunk.length
            pairs += chunk_pairs(chunk.start, chunk.length)
            rows += chunk.samples
        decoding = len(self._decoding)
        return StepWork(tokens + decoding, rows + decoding, context, pairs)
