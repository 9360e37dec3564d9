"""The runner on a GPU: a steady decode step is one graph replay, and its tokens come home while the next one runs.

A plan's deltas go to the device as one upload (`arena.py`). A step that only decodes is a captured graph: embed,
layers, logits, draw, append. A step with prompt chunks, or with rows whose logits are shaped first (penalties, bias,
log-probabilities), launches its kernels one by one. Nothing waits for the device but `collect`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.chains import Chains
from nanoserve.adapters.pytorch.cuda.chunks import describe
from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.adapters.pytorch.cuda.deltas import Deltas
from nanoserve.adapters.pytorch.cuda.graphs import Graphs, Key, bucket_of
from nanoserve.adapters.pytorch.cuda.transfers import Arrivals, Download
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, PromptScoring
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler, PackedScores
from nanoserve.kernels.sampling.on_device import sample_and_append
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import Chunk, StepPlan, StepResult, TokenLogprobs

TYPICAL_LENGTH = 512
"""Tokens of the rows whose graphs are captured before serving."""
LENGTH_STEP = 64
"""Tokens that a batch's longest row may grow by before the shape of its attention is chosen anew."""


@attrs.frozen(eq=False, kw_only=True)
class Ticket:
    """A submitted step.

    Attributes:
        slot: where its tokens arrive, in the order of `drawn_rows`; None if no row samples.
        order: for each row of the plan's `sampling_rows`, its place among the arrivals; None where they agree.
    """

    step: int
    slot: int | None = None
    drawn_rows: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    scores: PackedScores | None = None
    scores_download: Download | None = None
    prompt_scores: tuple[PromptScores, ...] = ()


@attrs.frozen(kw_only=True)
class Settings:
    """How the runner launches.

    Attributes:
        graphs: whether decoding steps are captured.
        pdl: whether their kernels overlap, see `kernels.triton_launch`.
        tile_queries: queries per tile of prefill attention.
        choose_splits: splits of decode attention for a bucket and the length of its longest row.
    """

    graphs: bool
    pdl: bool
    tile_queries: int
    choose_splits: Callable[[int, int], int]


class CudaRunner:
    """Fulfils `ModelRunner`; one process, one GPU.

    Attributes:
        kv: the KV cache of every layer.
        start_phases: seconds that each part of getting ready took, by name.
        graph_steps: steps by how they were launched, as a captured graph or kernel by kernel (eager).
    """

    def __init__(
        self,
        *,
        chains: Chains,
        rehearsal: Chains,
        arena: Arena,
        space: Workspace,
        sampler: DeviceSampler,
        kv: KVStore,
        settings: Settings,
    ) -> None:
        """`rehearsal` launches the same kernels as `chains`, through fewer layers."""
        capacity = arena.capacity
        self.kv = kv
        self._rehearsal = rehearsal
        self._chains, self._arena, self._space, self._sampler = chains, arena, space, sampler
        self._settings = settings
        self._batches = Batches(arena)
        self._prompt_scoring = PromptScoring()
        self._deltas = Deltas(arena, self._batches, sampler, self._prompt_scoring)
        self._arrivals = Arrivals(arena.lengths.device, capacity.ring_slots, capacity.max_num_seqs)
        self._sink_places = torch.full_like(arena.places, capacity.sink_row)
        self._ring = 0
        self._in_doubt = self._has_drawn = False
        self._graphs = Graphs(self._launch, self._rehearse) if settings.graphs else None
        self._choose_splits = functools.cache(settings.choose_splits)
        self._compiles = CompileCounter()
        self.start_phases: Mapping[str, float] = {}
        self.graph_steps = {"graph": 0, "eager": 0}

    def counts(self) -> RunnerCounts:
        """Waits in `collect`, kernels prepared after `start_serving` (each kept a whole batch waiting), launches."""
        return RunnerCounts(self._arrivals.waited_seconds, self._compiles.late, self.graph_steps)

    def start_serving(self, phases: Mapping[str, float]) -> None:
        """All that serving meets is ready: whatever is compiled from now on comes late."""
        self.start_phases = phases
        self._compiles.start()

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> Ticket:
        """Upload a plan's deltas and queue its step; returns at once.

        Raises:
            StepFailedError: the device has no memory left, even after freeing what can be made again.
        """
        if self._in_doubt:
            self._recover()
        self._in_doubt, self._has_drawn = True, False
        try:
            ticket = self._attempt(plan)
        except torch.OutOfMemoryError as error:
            if self._has_drawn:  # a second try would draw twice
                raise _out_of_memory(plan, error) from error
            ticket = self._attempt_with_less(plan)
        self._in_doubt = False
        return ticket

    def _attempt(self, plan: StepPlan) -> Ticket:
        self._deltas.apply(plan)
        if plan.num_tokens:
            return self._mixed(plan) if plan.chunks else self._decode(plan)
        self._arena.flush()
        return Ticket(step=plan.step)

    def _attempt_with_less(self, plan: StepPlan) -> Ticket:
        """Once more, after giving back what can be made again."""
        self._recover()
        if self._graphs is not None:
            self._graphs.drop()
        torch.cuda.empty_cache()
        try:
            return self._attempt(plan)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(plan, error) from error

    def _recover(self) -> None:
        """After a step that failed half-way: send nothing of it any more, and find the ring where the device is."""
        if self._arena.lengths.is_cuda:
            torch.cuda.synchronize()
        self._arena.forget()
        self._batches.dissolve()
        self._ring = int(self._arena.ring_position) % self._arena.capacity.ring_slots

    def collect(self, ticket: Ticket, /) -> StepResult:
        """Wait for a step's tokens.

        Raises:
            StepFailedError: rows whose logits are not finite, by number.
        """
        prompt_logprobs: dict[int, dict[int, TokenLogprobs]] = {}
        for each in ticket.prompt_scores:
            prompt_logprobs.setdefault(each.row, {}).update(each.read())
        if ticket.slot is None:
            return StepResult(token_ids=[], prompt_logprobs=prompt_logprobs)
        drawn = self._arrivals.wait(ticket.slot, len(ticket.drawn_rows))
        if min(drawn) < 0:
            guilty = tuple(row for row, token in zip(ticket.drawn_rows, drawn, strict=True) if token < 0)
            raise StepFailedError(f"step {ticket.step}: logits of rows {guilty} are not finite", guilty)
        logprobs: dict[int, TokenLogprobs] = {}
        if ticket.scores is not None and ticket.scores_download is not None:
            logprobs = ticket.scores.read(ticket.scores_download.wait())
        return StepResult(
            token_ids=drawn if ticket.order is None else [drawn[place] for place in ticket.order],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    @torch.inference_mode()
    def prepare(self, batch_sizes: Sequence[int]) -> None:
        """Run once, over padded places, every kernel that serving can meet, and capture these sizes of batch.

        The largest is captured first: later ones fit into the memory that it took.
        """
        self.rehearse(batch_sizes)
        self._recover()
        if self._graphs is not None:
            for size in self._sizes(batch_sizes):
                self._graphs.capture(self._key(size, TYPICAL_LENGTH, special=False))

    @torch.inference_mode()
    def rehearse(self, batch_sizes: Sequence[int]) -> None:
        """Launch every kernel that serving can meet with these sizes of batch, without effect on any row."""
        sizes = self._sizes(batch_sizes)
        for size in sizes:
            for splits in self._every_splits(size):
                self._rehearse((size, splits, True))
        self._rehearse_mixed(sizes)

    def _sizes(self, batch_sizes: Sequence[int]) -> list[int]:
        """The buckets of these sizes, largest first."""
        most = self._arena.capacity.max_num_seqs
        return sorted({bucket_of(size, most) for size in batch_sizes}, reverse=True)

    def _rehearse_mixed(self, sizes: Sequence[int]) -> None:
        """Steps of a chunk and some decoding rows, all of them the sink."""
        arena, capacity = self._arena, self._arena.capacity
        tokens = max(1, min(self._settings.tile_queries, capacity.max_model_len, capacity.max_tokens - 1))
        chunk = Chunk(capacity.sink_row, 0, tokens, samples=False)
        describe(arena, (chunk,), None, self._settings.tile_queries)
        arena.write("logits_indices", [0] * capacity.max_num_seqs)
        arena.flush()
        for size in sizes:
            for splits in self._every_splits(size):
                count = min(size, capacity.max_tokens - tokens)
                hidden = self._rehearsal.mixed(tokens, 1, count, splits=splits)
            chosen = self._rehearsal.choose(hidden, size)
            logits = self._rehearsal.chosen_logits(chosen)
            for shaped in (logits, logits.float()):
                self._draw(shaped, self._sink_places[:size], pdl=False)
                self._ring = (self._ring + 1) % capacity.ring_slots

    def _every_splits(self, size: int) -> set[int]:
        """Each number of splits that a batch of this size can meet: every one is another kernel to add them up."""
        longest, found = self._arena.capacity.max_model_len, set[int]()
        while longest:
            found |= {self._splits(size, longest), self._splits(size, longest // 2 + 1)}
            longest //= 2
        return found

    def _decode(self, plan: StepPlan) -> Ticket:
        batch, longest = self._batches.of(plan.decoding)
        self._arena.flush()
        special = self._sampler.special(batch.places)
        key = self._key(len(batch.places), longest, special=special)
        if self._graphs is not None:
            self._graphs.replay(key)
        else:
            self._launch(key)
        self.graph_steps["eager" if self._graphs is None else "graph"] += 1
        self._batches.advance()
        if special:
            logits = self._space.logits[: len(batch.places)]
            return self._sample(plan, logits, self._arena.places, batch.places, batch.order)
        return self._ticket(plan, batch.places, batch.order)

    def _mixed(self, plan: StepPlan) -> Ticket:
        batch, longest = None, 1
        if plan.decoding:
            batch, longest = self._batches.of(plan.decoding)
        step = describe(self._arena, plan.chunks, batch, self._settings.tile_queries)
        self._arena.flush()
        self.graph_steps["eager"] += 1
        num_decoding = len(step.batch.places)
        splits = self._splits(bucket_of(max(num_decoding, 1), self._arena.capacity.max_num_seqs), longest)
        scored = self._prompt_scoring.asks(plan.chunks)
        hidden = self._chains.mixed(
            step.num_chunk_tokens,
            step.num_tiles,
            num_decoding,
            splits=splits,
            num_chosen=None if scored else len(step.sampling),
        )
        scores: list[PromptScores] = []
        if scored:
            scores = self._prompt_scoring.score(plan.chunks, hidden, self._arena.tokens, self._chains.logits)
            hidden = self._chains.choose(hidden, len(step.sampling))
        if batch is not None:
            self._batches.advance()
        if not step.sampling:
            return Ticket(step=plan.step, prompt_scores=tuple(scores))
        logits = self._chains.chosen_logits(hidden)
        self._batches.add_tokens(step.finished)
        order = _shifted(step.batch.order, len(step.finished), num_decoding)
        places = self._arena.sampling_places
        return self._sample(plan, logits, places, step.sampling, order, prompt_scores=tuple(scores))

    def _sample(
        self,
        plan: StepPlan,
        logits: Tensor,
        places: Tensor,
        rows: tuple[int, ...],
        order: tuple[int, ...] | None,
        *,
        prompt_scores: tuple[PromptScores, ...] = (),
    ) -> Ticket:
        """Draw outside of a graph, with whatever the rows ask for before and after it."""
        special = self._sampler.special(rows)
        shaped = self._sampler.process(logits, rows) if special else logits
        self._draw(shaped, places[: len(rows)], pdl=False)
        ticket = self._ticket(plan, rows, order, prompt_scores)
        if not special:
            return ticket
        tokens = self._newest(places[: len(rows)])
        self._sampler.observe(rows, tokens)
        scores = self._sampler.score(logits, tokens, rows)
        if scores is None:
            return ticket
        return attrs.evolve(ticket, scores=scores, scores_download=self._arrivals.fetch(scores.packed))

    def _ticket(
        self,
        plan: StepPlan,
        rows: tuple[int, ...],
        order: tuple[int, ...] | None,
        prompt_scores: tuple[PromptScores, ...] = (),
    ) -> Ticket:
        """Note where the tokens of the draw just queued will arrive."""
        slot = self._ring
        self._ring = (slot + 1) % self._arena.capacity.ring_slots
        self._arrivals.expect(slot)
        self._has_drawn = True
        return Ticket(step=plan.step, slot=slot, drawn_rows=rows, order=order, prompt_scores=prompt_scores)

    def _newest(self, places: Tensor) -> Tensor:
        """The tokens that these rows were just given, int64 [S] on the device."""
        lengths = self._arena.lengths.index_select(0, places)
        return self._arena.tokens[places.long(), lengths.long() - 1].long()

    def _launch(self, key: Key) -> None:
        bucket, splits, samples = key
        self._step(self._chains, self._arena.places[:bucket], splits, samples)

    def _rehearse(self, key: Key) -> None:
        """A step over padded places: every kernel runs, over few layers, and no row changes."""
        bucket, splits, samples = key
        self._step(self._rehearsal, self._sink_places[:bucket], splits, samples)
        if samples:
            self._ring = (self._ring + 1) % self._arena.capacity.ring_slots

    def _step(self, chains: Chains, places: Tensor, splits: int, samples: bool) -> None:
        logits = chains.decode(places, splits=splits, pdl=self._settings.pdl)
        if samples:
            self._draw(logits, places, pdl=self._settings.pdl)

    def _draw(self, logits: Tensor, places: Tensor, *, pdl: bool) -> None:
        arena = self._arena
        sample_and_append(
            logits,
            batch_rows=places,
            tokens=arena.tokens,
            lengths=arena.lengths,
            num_prompt_tokens=arena.num_prompt_tokens,
            temperature=arena.temperature,
            top_k=arena.top_k,
            top_p=arena.top_p,
            min_p=arena.min_p,
            seeds=arena.seeds,
            drawn=self._arrivals.drawn,
            ring_position=arena.ring_position,
            scratch=self._space.sampling,
            pdl=pdl,
        )

    def _key(self, count: int, longest: int, *, special: bool) -> Key:
        bucket = bucket_of(count, self._arena.capacity.max_num_seqs)
        return bucket, self._splits(bucket, longest), not special

    def _splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for rows of up to `longest` tokens, which is rounded up so that few answers do."""
        rounded = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self._arena.capacity.max_model_len)
        return self._choose_splits(bucket, rounded)


def _out_of_memory(plan: StepPlan, error: Exception) -> StepFailedError:
    return StepFailedError(f"step {plan.step}: out of device memory: {error}")


def _shifted(order: tuple[int, ...] | None, by: int, count: int) -> tuple[int, ...] | None:
    """An order of decoding places behind `by` chunks that keep theirs."""
    if order is None:
        return None
    return (*range(by), *(by + order[place] for place in range(count)))
