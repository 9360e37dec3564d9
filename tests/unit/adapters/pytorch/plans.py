"""Hand-made plans for the runner: a small planner that allocates blocks, and nothing of the real scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import torch

from nanoserve.adapters.pytorch.runner import TorchRunner, TorchTicket
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import AdmittedRow, Chunk, RowSampling, StepPlan, StepResult, TableUpdate
from tests.unit.adapters.pytorch.tiny_models import TinyModel

BLOCK_SIZE = 4
GREEDY = RowSampling(seed=0, temperature=0.0)


def sizes_for(tiny: TinyModel, num_blocks: int, *, max_num_seqs: int = 4) -> EngineSizes:
    """Rows of up to 64 tokens."""
    return EngineSizes(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        max_model_len=64,
        vocab_size=tiny.spec.vocab_size,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
    )


def tiny_runner(tiny: TinyModel, *, max_num_seqs: int = 4, num_blocks: int = 60) -> TorchRunner:
    """A runner whose whole KV store is NaN until it is written."""
    runner = TorchRunner(tiny.build(), sizes_for(tiny, num_blocks, max_num_seqs=max_num_seqs))
    poison(runner)
    return runner


def poison(runner: TorchRunner) -> None:
    """Fill every block with NaN."""
    for tensor in (*runner.kv.keys, *runner.kv.values):
        tensor.fill_(torch.nan)


def greedy_text(tiny: TinyModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' own `generate` makes of a prompt."""
    with torch.inference_mode():
        output = tiny.reference.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@attrs.define
class PlannedRow:
    """A planned row: how many tokens it has, and how many of them are computed."""

    length: int
    computed: int
    tables: list[list[int]]


class Planner:
    """Builds plans, submits them `depth` ahead of collecting, and keeps what each row was given."""

    def __init__(self, runner: TorchRunner, *, depth: int = 1) -> None:
        self.runner = runner
        self.depth = depth
        num_groups = len(runner._model.spec.cache_groups)
        shuffled = torch.randperm(runner.kv.num_blocks[0], generator=torch.Generator().manual_seed(0)) + 1
        self.free = [shuffled.tolist() for _ in range(num_groups)]
        self.rows: dict[int, PlannedRow] = {}
        self.generated: dict[int, list[int]] = {}
        self.results: list[StepResult] = []
        self.updates: list[TableUpdate] = []
        self._admitted: list[AdmittedRow] = []
        self._released: list[int] = []
        self._flight: deque[tuple[list[list[int]], TorchTicket]] = deque()
        self._steps = 0

    @property
    def tables(self) -> dict[int, list[list[int]]]:
        """Block tables by row, one per cache group."""
        return {row: sequence.tables for row, sequence in self.rows.items()}

    def admit(
        self,
        row: int,
        tokens: Sequence[int],
        *,
        num_prompt_tokens: int | None = None,
        num_computed_tokens: int = 0,
        shared: Sequence[int] = (),
        sampling: RowSampling = GREEDY,
    ) -> None:
        """Let a sequence take a row in the next plan; `shared` are its first blocks in every group."""
        needed = -(-len(tokens) // BLOCK_SIZE) - len(shared)
        tables = [[*shared, *(free.pop() for _ in range(needed))] for free in self.free]
        self.rows[row] = PlannedRow(len(tokens), num_computed_tokens, tables)
        self.generated[row] = []
        self._admitted.append(
            AdmittedRow(
                row=row,
                token_ids=tuple(tokens),
                num_prompt_tokens=len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
                num_computed_tokens=num_computed_tokens,
                block_tables=tuple(tuple(table) for table in tables),
                sampling=sampling,
            )
        )

    def release(self, row: int) -> list[int]:
        """Free a row in the next plan, its blocks for reuse at once; returns all it was given, once collected."""
        sequence = self.rows.pop(row)
        for free, table in zip(self.free, sequence.tables, strict=True):
            free.extend(table)
        self._released.append(row)
        return self.generated.pop(row)

    def abandon(self) -> None:
        """After a failed step: forget what is in flight and release every row."""
        self._flight.clear()
        for row in list(self.rows):
            self.release(row)

    def plan(self, *, chunks: Sequence[tuple[int, int]] = (), decoding: tuple[int, ...] = ()) -> StepPlan:
        """A plan with `chunks` (row, length), which sample where they reach the row's end."""
        self._steps += 1
        planned = tuple(self._chunk(row, length) for row, length in chunks)
        for row in decoding:
            self._grow(row)
            self.rows[row].computed += 1
        plan = StepPlan(
            step=self._steps,
            released=tuple(self._released),
            admitted=tuple(self._admitted),
            table_updates=tuple(self.updates),
            chunks=planned,
            decoding=decoding,
        )
        for row in plan.sampling_rows:
            self.rows[row].length += 1
        self._released, self._admitted, self.updates = [], [], []
        return plan

    def step(self, *, chunks: Sequence[tuple[int, int]] = (), decoding: tuple[int, ...] = ()) -> None:
        """Submit a plan, and collect the oldest if `depth` are in flight."""
        plan = self.plan(chunks=chunks, decoding=decoding)
        takers = [self.generated[row] for row in plan.sampling_rows]
        self._flight.append((takers, self.runner.submit(plan)))
        if len(self._flight) >= self.depth:
            self._collect()

    def drain(self) -> None:
        """Collect everything in flight."""
        while self._flight:
            self._collect()

    def _collect(self) -> None:
        takers, ticket = self._flight.popleft()
        result = self.runner.collect(ticket)
        self.results.append(result)
        for taker, token in zip(takers, result.token_ids, strict=True):
            taker.append(token)

    def _chunk(self, row: int, length: int) -> Chunk:
        sequence = self.rows[row]
        start = sequence.computed
        sequence.computed += length
        assert sequence.computed <= sequence.length
        return Chunk(row, start, length, samples=sequence.computed == sequence.length)

    def _grow(self, row: int) -> None:
        sequence = self.rows[row]
        for group, (table, free) in enumerate(zip(sequence.tables, self.free, strict=True)):
            if sequence.length > len(table) * BLOCK_SIZE:
                table.append(free.pop())
                self.updates.append(TableUpdate(row, group, len(table) - 1, (table[-1],)))
