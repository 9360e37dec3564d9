"""Plans made by hand, for runners and their parts: sizes, admitted rows, and a driver that numbers and collects steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import AdmittedRow, RowSampling, StepPlan, StepResult
from tests.tiny_spec import TINY

SIZES = EngineSizes(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_model_len=64,
    vocab_size=TINY.vocab_size,
    block_size=4,
    num_blocks=32,
)


def admitted(
    row: int,
    tokens: Sequence[int] = (1, 2, 3),
    *tables: Iterable[int],
    computed: int = 0,
    num_prompt: int | None = None,
    max_length: int = 1 << 20,
    **sampling: Any,
) -> AdmittedRow:
    """A row with a block table for each cache group; without a seed of its own it draws by its first tokens."""
    return AdmittedRow(
        row=row,
        token_ids=tuple(tokens),
        num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
        num_computed_tokens=computed,
        block_tables=tuple(tuple(table) for table in tables),
        sampling=RowSampling(**{"seed": sum(tokens[:5])} | sampling),
        max_length=max_length,
    )


@attrs.define
class Driver:
    """Numbers plans, keeps `depth` of them in flight, and gathers results and each row's tokens."""

    runner: ModelRunner[Any]
    depth: int = 1
    tokens: list[tuple[int, int]] = attrs.field(factory=list)
    results: list[StepResult] = attrs.field(factory=list)
    _step: int = 0
    _in_flight: deque[tuple[StepPlan, Any]] = attrs.field(factory=deque)

    def step(self, **deltas: Iterable[Any]) -> None:
        """Submit the next plan, and collect the oldest if `depth` are in flight."""
        self._step += 1
        given: dict[str, Any] = {name: tuple(value) for name, value in deltas.items()}
        plan = StepPlan(step=self._step, **given)
        self._in_flight.append((plan, self.runner.submit(plan)))
        if len(self._in_flight) >= self.depth:
            self.collect()

    def collect(self) -> None:
        """Collect the oldest step in flight."""
        plan, ticket = self._in_flight.popleft()
        result = self.runner.collect(ticket)
        self.results.append(result)
        self.tokens += zip(plan.sampling_rows, result.token_ids, strict=True)

    def finish(self) -> list[tuple[int, int]]:
        """Collect everything in flight; every row and token so far."""
        while self._in_flight:
            self.collect()
        return self.tokens

    def of(self, row: int) -> list[int]:
        """Every token that a row got."""
        return [token for each, token in self.finish() if each == row]

    def abandon(self) -> None:
        """Forget the steps in flight, as after one that failed."""
        self._in_flight.clear()
