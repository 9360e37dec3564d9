"""Draws a step's tokens into their rows, and brings them to the host: the end of every step that samples.

The kernel that draws appends each token to its row and writes it to a slot of a ring in host memory. Device and host each
count the draws, so both know the slot without asking; `find_ring` makes them agree again after a failure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.masks import PinnedBlock, PinnedBlocks
from nanoserve.adapters.pytorch.cuda.transfers import Arrivals, Download
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler, PackedScores
from nanoserve.kernels.sampling.launch import sample_and_append
from nanoserve.ports.grammar import Masks
from nanoserve.ports.step import StepResult, TokenLogprobs

RING_SLOTS = 16
"""Steps whose tokens are kept for the host to fetch: more than can be in flight, captures included."""


@attrs.define(eq=False, kw_only=True)
class CudaTicket:
    """A submitted step.

    Attributes:
        slot: where its tokens arrive, in the order of `drawn_rows`; None if no row samples.
        order: for each row of the plan's `sampling_rows`, its place among the arrivals, any for one that gets nothing; None where
            they agree.
        late: of a step whose draw was queued after its forward pass, the ticket of that draw.
        pooled: rows that were pooled, and their vectors.
        is_empty: whether the step computes nothing.
    """

    step: int
    slot: int | None = None
    drawn_rows: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    scores: PackedScores | None = None
    scores_download: Download | None = None
    prompt_scores: tuple[PromptScores, ...] = ()
    late: CudaTicket | None = None
    pooled: tuple[tuple[tuple[int, ...], Download], ...] = ()
    is_empty: bool = False


class Drawing:
    """The draws of all steps.

    Attributes:
        arrivals: where drawn tokens come to the host.
        blocks: memory for the masks of steps that are drawn late.
        num_tickets: draws that a ticket was given for; a step that fails after its draw must not be tried again.
    """

    def __init__(self, arena: Arena, space: Workspace, sampler: DeviceSampler) -> None:
        self._arena, self._space, self._sampler = arena, space, sampler
        self.arrivals = Arrivals(arena.lengths.device, RING_SLOTS, arena.sizes.max_num_seqs)
        self.num_tickets = 0
        self._ring = 0
        self._masked_slot: int | None = None
        self.blocks = PinnedBlocks(
            vocab_size=sampler.vocab_size, max_rows=arena.sizes.max_num_seqs, device=arena.lengths.device
        )

    def draw(self, logits: Tensor, places: Tensor, *, pdl: bool) -> None:
        """Launch the draw of one token for each place; may be captured. `note_draw` or `ticket` must follow each run."""
        arena = self._arena
        sample_and_append(
            logits,
            batch_rows=places,
            tokens=arena.tokens,
            lengths=arena.lengths,
            num_prompt_tokens=arena.num_prompt_tokens,
            **arena.settings,
            seeds=arena.seeds,
            drawn=self.arrivals.drawn,
            ring_position=arena.ring_position,
            scratch=self._space.sampling,
            width=1,
            pdl=pdl,
        )

    def draw_masked(self, places: Tensor, *, pdl: bool) -> None:
        """`draw` from the logits that the newest forward pass left, with the masks that were sent; may be captured."""
        logits = self._space.logits[: len(places)]
        self.blocks.exclude(logits)
        self.draw(logits, places, pdl=pdl)

    def rehearse_mask(self, logits: Tensor) -> None:
        """Launch what excludes tokens, over these logits, which a draw has been made of."""
        self.blocks.exclude(logits)

    def lend_block(self) -> PinnedBlock:
        """Memory for a step's masks; waits for the draw with those before, which ranks that follow another one do not collect."""
        if self._masked_slot is not None:
            self.arrivals.reach(self._masked_slot)
            self._masked_slot = None
        return self.blocks.take()

    def note_draw(self) -> int:
        """A draw has been queued; returns the slot of its tokens."""
        slot = self._ring
        self._ring = (slot + 1) % RING_SLOTS
        return slot

    def find_ring(self) -> None:
        """Take the device's count of draws for the host's; waits for the device."""
        self._ring = int(self._arena.ring_position) % RING_SLOTS

    def ticket(
        self,
        step: int,
        rows: tuple[int, ...],
        order: tuple[int, ...] | None,
        prompt_scores: tuple[PromptScores, ...] = (),
        *,
        masked: bool = False,
    ) -> CudaTicket:
        """Note where the tokens of the draw just queued, `masked` or not, will arrive."""
        slot = self.note_draw()
        self.arrivals.expect(slot)
        if masked:
            self._masked_slot = slot
        self.num_tickets += 1
        return CudaTicket(step=step, slot=slot, drawn_rows=rows, order=order, prompt_scores=prompt_scores)

    def sample(
        self,
        step: int,
        logits: Tensor,
        places: Tensor,
        *,
        rows: tuple[int, ...],
        order: tuple[int, ...] | None,
        prompt_scores: tuple[PromptScores, ...] = (),
        masks: Masks | None = None,
        missing: Collection[int] = (),
    ) -> CudaTicket:
        """Draw outside of a graph, with what the rows ask for before and after it; `places` begins with `rows`, `missing` get nothing."""
        # Scores are of the logits as the model made them; `process` returns a copy.
        special, places = self._sampler.special(rows), places[: len(rows)]
        shaped = self._sampler.process(logits, rows) if special else logits
        if masks:
            self.blocks.send(masks, rows)
            self.blocks.exclude(shaped)
        if missing:
            drawn = [place for place, row in enumerate(rows) if row not in missing]
            order = tuple(
                bisect_left(drawn, place) % len(drawn) if drawn else 0 for place in order or range(len(rows))
            )
            if not drawn:
                return CudaTicket(step=step, order=order, prompt_scores=prompt_scores)
            index = torch.tensor(drawn, device=places.device)
            logits, shaped, places = (each.index_select(0, index) for each in (logits, shaped, places))
            rows = tuple(rows[place] for place in drawn)
        self.draw(shaped, places, pdl=False)
        ticket = self.ticket(step, rows, order, prompt_scores, masked=bool(masks))
        if not special:
            return ticket
        tokens = self._newest(places)
        self._sampler.observe(rows, tokens)
        scores = self._sampler.score(logits, tokens, rows)
        if scores is None:
            return ticket
        return attrs.evolve(ticket, scores=scores, scores_download=self.arrivals.fetch(scores.packed))

    def _newest(self, places: Tensor) -> Tensor:
        """The tokens that these rows were just given, int64 [S] on the device."""
        lengths = self._arena.lengths.index_select(0, places)
        return self._arena.tokens[places.long(), lengths.long() - 1].long()

    def collect(self, ticket: CudaTicket) -> StepResult:
        """Wait for a step's tokens."""
        ticket = ticket.late or ticket
        prompt_logprobs: dict[int, dict[int, TokenLogprobs]] = {}
        for each in ticket.prompt_scores:
            prompt_logprobs.setdefault(each.row, {}).update(each.read())
        if ticket.slot is None:
            return StepResult(token_ids=[0] * len(ticket.order or ()), prompt_logprobs=prompt_logprobs)
        drawn = self.arrivals.wait(ticket.slot, len(ticket.drawn_rows))
        broken: tuple[int, ...] = ()
        if min(drawn) < 0:  # the draw reports a logit that is not finite as -1 - token
            broken = tuple(row for row, token in zip(ticket.drawn_rows, drawn, strict=True) if token < 0)
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        if ticket.scores is not None and ticket.scores_download is not None:
            scores = ticket.scores.read(ticket.scores_download.wait())
            logprobs = {row: (score,) for row, score in scores.items()}
        return StepResult(
            token_ids=drawn if ticket.order is None else [drawn[place] for place in ticket.order],
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            broken=broken,
        )
