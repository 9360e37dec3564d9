"""The runner on a GPU: a steady decode step is one graph replay, and its tokens come home while the next one runs.

How a step becomes tokens:

1. The plan's deltas are written into the *arena* (`arena.py`), which goes to the device as one upload. Device rows persist, so a
   plan says only what changed, and a step in which nothing changed uploads nothing.
2. A step that only decodes is a captured graph (`decoding.py`): embed, layers, logits, draw, append. A step with prompt chunks
   is one, too, if it is small (`mixed_steps.py`), or launches its kernels one by one (`forward_launcher.py`), and so does the draw of rows whose logits are shaped first (penalties, bias,
   log-probabilities). In a wide step each row has drafts behind its newest token, which are made on the device when the step begins;
   beside chunks it has one token. Where rows follow a grammar, `submit` queues the forward pass alone, and `draw` the rest.
3. The draw appends each token to its row on the device, so the next step can be queued before the host knows it, and writes it
   to host memory as well (`drawing.py`).

Nothing waits for the device but `collect`, and whatever waits for it in `submit` would make every row wait. So the host keeps what it
must know without asking: how long each row is (`batches.py`), and how many draws were queued.

A step that fails half-way leaves the two sides of that book-keeping in doubt. The next `submit` recovers: it waits for the device,
drops what was not sent, and counts draws anew. Memory that runs out is tried for once more with all graphs dropped,
unless the step has drawn already: a second draw would append a second token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batches
from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.adapters.pytorch.cuda.decoding import Decoding, Propose
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Graphs
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.cuda.row_updates import RowUpdates
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.offload import Offload
from nanoserve.adapters.pytorch.pooling import RowPooling, add_pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores, PromptScoring
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.kernels.copies.launch import copy_pages_into
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.grammar import MaskBlock, Masks
from nanoserve.ports.step import SINK_BLOCK, BlockCopy, StepPlan, StepResult


class CudaRunner:
    """Fulfils `ModelRunner` and `LateDrawing`; one process, one GPU.

    Attributes:
        kv: the KV cache of every layer.
        host: slots of host memory; None where the sizes want none.
        loras: adapters that plans may load; None where there are no slots for them.
        start_phases: seconds that each part of getting ready took, by name.
        step_seconds: tokens of steps and what these take, where rows have drafts.
        graph_steps: steps by how they were launched, as a captured graph or kernel by kernel (eager).
    """

    def __init__(
        self,
        *,
        launcher: ForwardLauncher,
        rehearsal: ForwardLauncher,
        arena: Arena,
        space: Workspace,
        sampler: DeviceSampler,
        kv: KVStore,
        graphs: Graphs | None,
        pdl: bool,
        token_counts: Sequence[int],
        propose: Propose,
    ) -> None:
        """`rehearsal` launches the same kernels as `launcher`, through fewer layers; for the last four see `Decoding` and `Rehearsal`."""
        self.kv = kv
        self._launcher, self._arena, self._space = launcher, arena, space
        self._sampler = sampler
        self._batches = Batches(arena)
        self._prompt_scoring = PromptScoring()
        self._pooling = RowPooling(launcher.logits, launcher.pooled_layers)
        self._row_updates = RowUpdates(arena, self._batches, sampler, self._prompt_scoring, self._pooling)
        self._drawing = Drawing(arena, space.sampling)
        self._special = SpecialDraws(arena, space.logits, sampler, self._drawing)
        how: dict[str, Any] = {"graphs": graphs, "pdl": pdl, "propose": propose}
        self._decoding = Decoding(launcher, rehearsal, arena, self._drawing, self._special, **how)
        self._graphs = graphs
        self._mixed_steps = MixedSteps(
            launcher, arena, space.logits, self._decoding, graphs, seconds=self._pooling.seconds
        )
        self._rehearsal = Rehearsal(rehearsal, arena, self._decoding, self._drawing, token_counts)
        self._undrawn: tuple[tuple[int, ...], Callable[..., CudaTicket]] | None = None
        self._in_doubt = False
        host_slots = arena.sizes.host_slots
        self._offload = Offload(kv, host_slots) if host_slots else None
        self.host = self._offload and self._offload.slots
        self._loras = launcher.loras
        self.loras = None if self._loras is None else self._loras.host
        self._compiles = CompileCounter()
        self.start_phases: Mapping[str, float] = {}
        self.step_seconds: tuple[tuple[int, float], ...] = ()
        self.graph_steps = {"graph": 0, "eager": 0}

    def counts(self) -> RunnerCounts:
        """Waits in `collect`, kernels prepared after `start_serving` (each kept a whole batch waiting), launches."""
        return RunnerCounts(self._drawing.arrivals.waited_seconds, self._compiles.late, self.graph_steps)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Launch every kernel that serving can meet, without effect on any row."""
        self._copy([BlockCopy(group, SINK_BLOCK, SINK_BLOCK) for group in range(len(self.kv.pools))])
        self._rehearsal.run()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Rehearse, then capture the first graphs."""
        self.rehearse()
        self._recover()
        if self._launcher.encoder is not None:
            return
        self._decoding.capture_first()
        if self._arena.sizes.max_width > 1:
            self.step_seconds = self._rehearsal.step_seconds()

    def start_serving(self, phases: Mapping[str, float]) -> None:
        """All that serving meets is ready: whatever is compiled from now on comes late."""
        self.start_phases = phases
        self._compiles.start()

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> CudaTicket:
        """Upload a plan's deltas and queue its step; returns at once.

        Raises:
            StepFailedError: the device has no memory left, even after freeing what can be made again.
        """
        if self._in_doubt:
            self._recover()
        # Set before anything is sent: whatever is raised below leaves it set, even a KeyboardInterrupt.
        self._in_doubt, tickets_before = True, self._drawing.num_tickets
        if self._offload is not None:
            self._offload.start(plan)
        if self._loras is not None:
            self._loras.await_slots()
        try:
            ticket = self._attempt(plan)
        except torch.OutOfMemoryError as error:
            if self._drawing.num_tickets > tickets_before:
                raise _out_of_memory(plan, error) from error
            ticket = self._attempt_with_less(plan, error)
        self._in_doubt = False
        ticket.admissions = self._batches.admissions
        return ticket

    def mask_block(self, _count: int, /) -> MaskBlock:
        """As in `LateDrawing`; pinned, and for as many rows as there are."""
        return self._special.lend_block()

    @torch.inference_mode()
    def draw(self, ticket: CudaTicket, masks: Masks, /) -> None:
        """As in `LateDrawing`; returns at once."""
        undrawn, self._undrawn = self._undrawn, None
        assert undrawn is not None
        self._in_doubt = True
        masked, draw = undrawn
        missing = set(masked) - masks.keys()
        ticket.late = draw(masks=masks, missing=missing)
        if not ticket.late.width:
            self._batches.take_back(missing)
        self._in_doubt = False

    def collect(self, ticket: CudaTicket, /) -> StepResult:
        """Wait for a step's tokens."""
        result, drawn = self._drawing.collect(ticket), ticket.late or ticket
        if drawn.width:
            surplus = [drawn.width - count for count in result.counts]
            self._batches.correct(drawn.rows, surplus, ticket.admissions)
        if ticket.pooled:
            arrived = [attrs.evolve(each, vectors=vectors.wait()) for each, vectors in ticket.pooled]
            result = add_pooled(result, arrived)
        if self._offload is None:
            return result
        return attrs.evolve(result, copied=self._offload.finished(ticket.step, wait=ticket.is_empty))

    def _attempt(self, plan: StepPlan) -> CudaTicket:
        if self._loras is not None:
            self._loras.apply(plan)
        self._row_updates.apply(plan)
        if plan.copies:
            self._copy(plan.copies)
        if plan.num_tokens:
            return self._mixed(plan) if plan.chunks else self._decode(plan)
        self._arena.flush()
        return CudaTicket(step=plan.step, is_empty=True)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        """Queue a plan's copies before whatever the step launches; they are no part of a graph."""
        pairs: dict[int, list[int]] = {}
        for each in copies:
            pairs.setdefault(each.group, []).extend((each.source, each.target))
        for group, numbers in pairs.items():
            self._arena.write("copies", numbers, row=group)
        self._arena.flush()
        for group, numbers in pairs.items():
            for pool in self.kv.pools[group]:
                copy_pages_into(pool, self._arena.copies[group, : len(numbers) // 2])

    def _decode(self, plan: StepPlan) -> CudaTicket:
        batch, longest = self._batches.of(plan.decoding)
        adapted = self._loras is not None and self._loras.adapts(batch)
        special = self._sampler.special(batch.places)
        drawn_later = special or bool(plan.masked)
        if plan.masked and plan.width > 1:
            self._row_updates.give_drafts(plan)
        self._arena.flush()
        how: dict[str, Any] = {"special": drawn_later, "adapted": adapted, "width": plan.width}
        key = self._decoding.key(len(batch.places), longest, **how)
        self.graph_steps[self._decoding.run(key)] += 1
        tokens = max(key.width, 1)
        ticket = CudaTicket(step=plan.step, drawn_rows=batch.places, order=batch.order, width=key.width)
        self._batches.advance(tokens)
        if special:
            logits = self._space.logits[: len(batch.places) * tokens]
            return self._sample(plan, ticket, logits, self._arena.places)
        if plan.masked:
            self._undrawn = plan.masked, functools.partial(self._draw_masked, plan, ticket)
            return CudaTicket(step=plan.step)
        return self._drawing.issue(ticket)

    def _draw_masked(
        self, plan: StepPlan, ticket: CudaTicket, *, masks: Masks, missing: set[int]
    ) -> CudaTicket:
        """Draw by a graph, if it is for all rows and as wide as was planned."""
        rows, width = ticket.drawn_rows, max(ticket.width, 1)
        if missing or plan.width > width:
            logits, places = self._space.logits[: len(rows) * width], self._arena.places
            return self._special.sample(ticket, logits, places, masks=masks, missing=missing)
        self._special.blocks.send(masks, rows, width)
        self._decoding.run(self._decoding.draw_key(len(rows), ticket.width))
        return self._drawing.issue(ticket, masked=True)

    def _mixed(self, plan: StepPlan) -> CudaTicket:
        batch, longest = self._batches.of(plan.decoding) if plan.decoding else (EMPTY, 1)
        lora_groups = 0 if self._loras is None else self._loras.describe(plan.chunks, batch)
        scored, pooled = self._prompt_scoring.asks(plan.chunks), bool(self._pooling.asked)
        scores: list[PromptScores] = []
        fetched: tuple[Any, ...] = ()
        if scored or pooled or lora_groups:
            alone = pooled and not (scored or lora_groups)
            single = self._pooling.single(plan.chunks) if alone else None
            more: dict[str, Any] = {"choose": single, "lora_groups": lora_groups}
            step, hidden = self._mixed_steps.whole(plan.chunks, batch, longest, **more)
            count = len(step.sampling)
            logits, how = self._space.logits[:count], "eager"
            if single is not None:
                vectors = self._pooling.pool_single(plan.chunks, hidden[count:])
            else:
                vectors = self._pooling.pool(plan.chunks, hidden) if pooled else []
            fetched = tuple([(each, self._drawing.arrivals.fetch(each.vectors)) for each in vectors])
            if scored:
                tokens, head = self._arena.tokens, self._launcher.logits
                scores = self._prompt_scoring.score(plan.chunks, hidden, tokens, head)
            if count:
                chosen = hidden[:count] if single is not None else self._launcher.choose(hidden, count)
                self._launcher.chosen_logits(chosen)
        else:
            step, logits, how = self._mixed_steps.run(plan.chunks, batch, longest)
        self.graph_steps[how] += 1
        if plan.decoding:
            self._batches.advance()
        if not step.sampling:
            return CudaTicket(step=plan.step, prompt_scores=tuple(scores), pooled=fetched)
        self._batches.add_tokens(step.finished)
        finished, order = len(step.finished), step.batch.order
        if order is not None:  # decoding places come behind the chunks, which keep theirs
            order = (*range(finished), *(finished + order[place] for place in range(len(batch.places))))
        places, width = self._arena.sampling_places, int(plan.width > 1)
        ticket = CudaTicket(step=plan.step, drawn_rows=step.sampling, order=order, width=width)
        ticket.prompt_scores = tuple(scores)
        ticket = self._sample(plan, ticket, logits, places)
        ticket.pooled = fetched
        return ticket

    def _sample(self, plan: StepPlan, ticket: CudaTicket, logits: Tensor, places: Tensor) -> CudaTicket:
        """Draw now, or once `draw` brings the masks. Nothing is submitted meanwhile, so that logits and places stay."""
        draw = functools.partial(self._special.sample, ticket, logits, places)
        if not plan.masked:
            return draw()
        self._undrawn = plan.masked, draw
        return CudaTicket(step=plan.step)

    def _attempt_with_less(self, plan: StepPlan, cause: Exception) -> CudaTicket:
        """Once more, after giving back what can be made again.

        States may have been advanced already: a model that has some leaves its rows to be computed anew.
        """
        self._recover()
        if self._graphs is not None:
            self._graphs.drop()
        torch.cuda.empty_cache()
        if self.kv.has_states:
            raise _out_of_memory(plan, cause) from cause
        try:
            return self._attempt(plan)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(plan, error) from error

    def _recover(self) -> None:
        """Send nothing more of a step that failed half-way, and agree with the device about the number of draws."""
        if self._arena.lengths.is_cuda:
            torch.cuda.synchronize()
        self._arena.forget()
        self._batches.dissolve()
        self._drawing.find_ring()


def _out_of_memory(plan: StepPlan, error: Exception) -> StepFailedError:
    return StepFailedError(f"step {plan.step}: out of device memory: {error}")
