"""The runner on a GPU: a steady decode step is one graph replay, and its tokens reach the host while the next one runs.

How a step becomes tokens:

1. The plan's deltas are written into the *arena* (`arena.py`), which goes to the device as one upload. Device rows persist, so a
   plan says only what changed, and a step in which nothing changed uploads nothing.
2. A step that only decodes is a captured graph (`decoding.py`): embed, layers, logits, draw, append. A step with prompt chunks
   is one, too, if it is small (`mixed_steps.py`), or launches its kernels one by one (`forward_launcher.py`), and so does the draw
   of rows whose logits are shaped first (`special_draws.py`). Where rows follow a grammar, `submit` queues the forward pass alone,
   and `draw` the rest. In a wide step each row has drafts behind its newest token, made on the device when the step begins.
3. The draw appends each token to its row on the device, so the next step can be queued before the host knows it, and writes it
   to host memory as well (`drawing.py`).

Only `collect` waits for the device, because a wait in `submit` would make every row wait. So the host keeps each row's length
(`batches.py`) and the number of queued draws. A step that fails half-way leaves them in doubt: the next `submit` recovers
(`recovery.py`). `building.py` makes the collaborators.
"""

from __future__ import annotations

import functools

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.compiles import CompileCounter
from nanoserve.adapters.pytorch.cuda.decoding import Decoding
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps
from nanoserve.adapters.pytorch.cuda.recovery import Recovery
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.cuda.row_updates import RowUpdates
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.cuda.windows import Windows
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.adapters.pytorch.offload import HostSlots, Offload
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.grammar import MaskBlock, Masks
from nanoserve.ports.step import StepPlan, StepResult


@attrs.define(eq=False, kw_only=True, slots=False)
class CudaRunner:
    """Fulfils `ModelRunner` and `LateDrawing`; one process, one GPU.

    Attributes:
        kv: the KV cache of every layer; `host`, slots of host memory beside it, and `loras`, adapters that plans may load, or None.
        rehearsal: launches whatever serving can meet.
        graph_steps: steps by how they were launched, as a captured graph or kernel by kernel (eager).
    """

    kv: KVStore
    host: HostSlots | None
    loras: HostLoras | None
    rehearsal: Rehearsal
    _launcher: ForwardLauncher
    _arena: Arena
    _logits: Tensor
    _sampler: DeviceSampler
    _batches: Batches
    _row_updates: RowUpdates
    _drawing: Drawing
    _special: SpecialDraws
    _decoding: Decoding
    _mixed_steps: MixedSteps
    _recovery: Recovery
    _windows: Windows
    _offload: Offload | None
    _compiles: CompileCounter = attrs.field(factory=CompileCounter)
    graph_steps: dict[str, int] = attrs.field(factory=lambda: {"graph": 0, "eager": 0})

    def counts(self) -> RunnerCounts:
        """Waits in `collect`, kernels prepared after `start_serving` (each kept a whole batch waiting), launches."""
        return RunnerCounts(self._drawing.arrivals.waited_seconds, self._compiles.late, self.graph_steps)

    def start_serving(self) -> None:
        """All kernels that serving uses are ready; later compiles count as late."""
        self._compiles.start()

    @torch.inference_mode()
    def submit(self, plan: StepPlan, /) -> CudaTicket:
        """Upload a plan's deltas and queue its step; returns at once.

        Raises:
            StepFailedError: the device has no memory left, even after freeing what can be made again.
        """
        with self._recovery.watched():
            if self._offload is not None:
                self._offload.start(plan)
            ticket = self._recovery.attempt(plan, self._attempt)
        ticket.admissions = self._batches.admissions
        return ticket

    def mask_block(self, _count: int, /) -> MaskBlock:
        """As in `LateDrawing`; pinned, and for as many rows as there are."""
        return self._special.lend_masks()

    @torch.inference_mode()
    def draw(self, ticket: CudaTicket, masks: Masks, /) -> None:
        """As in `LateDrawing`; returns at once."""
        with self._recovery.watched():
            missing = self._special.draw_held(ticket, masks)
            if ticket.late is not None and not ticket.late.width:
                self._batches.add_tokens(missing, -1)

    def collect(self, ticket: CudaTicket, /) -> StepResult:
        """Wait for a step's tokens."""
        result, drawn = ticket.result(self._drawing.arrivals), ticket.late or ticket
        if drawn.width:
            self._batches.correct(drawn.rows, drawn.width, result.counts, ticket.admissions)
        if ticket.verified is not None:
            self._windows.collect(ticket.verified, result, ticket.admissions)
        if self._offload is None:
            return result
        return attrs.evolve(result, copied=self._offload.finished(ticket.step, wait=ticket.is_empty))

    def _attempt(self, plan: StepPlan) -> CudaTicket:
        self._row_updates.apply(plan)
        self._windows.apply(plan)
        if not plan.num_tokens:
            self._arena.flush()
            return CudaTicket(step=plan.step, is_empty=True)
        with self._windows.computing(plan):
            ticket = self._mixed(plan) if plan.chunks else self._decode(plan)
        ticket.verified = ticket.verified or self._windows.note_decoded(plan)
        if (records := self._launcher.records) is not None and records.is_asked:
            chunks = [(each.row, each.start, each.length) for each in plan.chunks]
            ticket.routed = records.report(chunks + self._batches.newest(), self._drawing.arrivals.fetch)
        return ticket

    def _decode(self, plan: StepPlan) -> CudaTicket:
        batch, longest = self._batches.of(plan.decoding)
        loras, special = self._launcher.loras, self._sampler.special(batch.places)
        how = {"special": special or bool(plan.masked), "adapted": loras is not None and loras.adapts(batch)}
        how["invariant"] = plan.invariant
        key = self._decoding.keys.of(len(batch.places), longest, **how, width=plan.width)
        self._arena.flush()
        self.graph_steps[self._decoding.run(key)] += 1
        tokens = max(key.width, 1)
        self._batches.advance(tokens)
        ticket = CudaTicket(step=plan.step, drawn_rows=batch.places, order=batch.order, width=key.width)
        logits = self._logits[: len(batch.places) * tokens]
        if special:
            return self._sample(plan, ticket, logits, self._arena.places)
        if plan.masked:
            draw = functools.partial(self._special.draw_behind, plan, ticket, self._decoding.run_draw)
            return self._special.hold(plan, draw)
        return self._drawing.issue(ticket)

    def _mixed(self, plan: StepPlan) -> CudaTicket:
        batch, longest = self._batches.of(plan.decoding)
        run = self._mixed_steps.run(plan, batch, longest, special=self._sampler.special(plan.sampling_rows))
        verified = self._windows.draw(plan, run.hidden) if plan.invariant else None
        self.graph_steps[run.how] += 1
        if plan.decoding:
            self._batches.advance()
        ticket, step = CudaTicket(step=plan.step, prompt_scores=run.scores), run.step
        self._batches.add_tokens(step.finished)
        ticket.drawn_rows, ticket.order, ticket.width = step.sampling, step.order, int(plan.width > 1)
        if step.sampling and not run.is_drawn:
            ticket = self._sample(plan, ticket, run.logits, self._arena.sampling_places)
        else:
            self._special.finish(ticket if run.is_drawn else None)
        ticket.pooled, ticket.verified = run.pooled, verified
        return ticket

    def _sample(self, plan: StepPlan, ticket: CudaTicket, logits: Tensor, places: Tensor) -> CudaTicket:
        """Draw now, or once `draw` brings the masks. Nothing is submitted meanwhile, so that logits and places stay."""
        draw = functools.partial(self._special.sample, ticket, logits, places)
        return self._special.hold(plan, draw) if plan.masked else draw()
