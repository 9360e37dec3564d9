"""A runner that computes nothing and says when it would be done: a `StepCost` over a clock that it moves.

Steps follow one another on the device without a gap while one is queued behind the other, and collecting a step moves the clock to
its end. The answer to a prompt whose last token is t is t + 1, again and again, so a trace of a conversation can
hold the answers of earlier turns, and their blocks are found.
"""

from __future__ import annotations

import attrs

from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.step import StepPlan, StepResult
from nanoserve_cluster.ports.simulation import ComputedStep, VirtualClock
from nanoserve_cluster.ports.step_cost import StepCost, StepWork, chunk_pairs


@attrs.define
class _SimulatedRow:
    """A device row: the seed of its sequence, the token it yields, and its position less the step that computes it."""

    seed: int
    answer: int
    offset: int = 0


class CostRunner:
    """Fulfils `ModelRunner`.

    Attributes:
        busy: seconds that the device has computed.
        handed: numbers of requests whose prompts were computed elsewhere, so that they cost nothing here.
    """

    def __init__(self, cost: StepCost, clock: VirtualClock) -> None:
        self._cost = cost
        self._clock = clock
        self._rows: dict[int, _SimulatedRow] = {}
        self._decoding: tuple[int, ...] = ()
        self._answers: list[int] = []
        self._offsets = 0
        self._free_at = 0.0
        self._done: list[ComputedStep] = []
        self.busy = 0.0
        self.handed: set[int] = set()

    def submit(self, plan: StepPlan, /) -> tuple[ComputedStep, list[int]]:
        """The ticket is when the step is done, and what it yields."""
        rows = self._rows
        for released in plan.released:
            rows.pop(released, None)
        for admitted in plan.admitted:
            answer = admitted.token_ids[admitted.num_prompt_tokens - 1] + 1
            rows[admitted.row] = _SimulatedRow(admitted.sampling.seed, answer)
        if plan.decoding is not self._decoding:
            self._decoding = plan.decoding
            self._answers = [rows[row].answer for row in plan.decoding]
            self._offsets = sum(rows[row].offset for row in plan.decoding)
        prefilled: tuple[int, ...] = ()
        yielded, tokens, pairs = self._answers, 0, 0
        for chunk in plan.chunks:
            row = rows[chunk.row]
            if row.seed not in self.handed:
                tokens += chunk.length
                pairs += chunk_pairs(chunk.start, chunk.length)
            if chunk.samples:
                tokens += row.seed in self.handed
                row.offset = chunk.start + chunk.length - plan.step
                prefilled = (*prefilled, row.seed)
        if prefilled:
            yielded = [rows[chunk.row].answer for chunk in plan.chunks if chunk.samples] + yielded
        decoding = len(plan.decoding)
        work = StepWork(tokens + decoding, len(yielded), self._offsets + decoding * plan.step, pairs)
        begins = max(self._clock.time, self._free_at)
        self._free_at = begins + self._cost.seconds(work)
        self.busy += self._free_at - begins
        return ComputedStep(self._free_at, decoding, prefilled), yielded

    def collect(self, ticket: tuple[ComputedStep, list[int]], /) -> StepResult:
        """Wait until the step is done."""
        step, yielded = ticket
        self._clock.time = max(self._clock.time, step.ended)
        self._done.append(step)
        return StepResult(token_ids=yielded)

    def take(self) -> list[ComputedStep]:
        """The steps collected since the last time."""
        done, self._done = self._done, []
        return done

    def counts(self) -> RunnerCounts:
        """It counts nothing."""
        return RunnerCounts()
