"""Draws a step's tokens into their rows, and brings them to the host: the end of every step that samples.

The kernel that draws appends each token to its row and writes it to a slot of a ring in host memory. Device and host each
count the draws, so both know the slot without asking; `find_ring` makes them agree again after a failure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import most_tokens
from nanoserve.adapters.pytorch.cuda.masks import PinnedBlock, PinnedBlocks
from nanoserve.adapters.pytorch.cuda.transfers import Arrivals, Download
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.pooling import Pooled
from nanoserve.adapters.pytorch.prompt_scoring import PromptScores
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler, PackedScores
from nanoserve.kernels.sampling.launch import sample_and_append
from nanoserve.ports.grammar import MOST_DRAFTED, Masks
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
        pooled: rows that were pooled with their vectors on the device, and these on their way.
        width: of a wide plan's step, tokens that each row has drawn at the most; else 0. `admissions`, how many rows had been admitted.
        asked: of a wide plan's step in which some rows got nothing, the rows of the plan's `sampling_rows`.
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
    pooled: tuple[tuple[Pooled, Download], ...] = ()
    width: int = 0
    asked: tuple[int, ...] = ()
    admissions: int = 0
    is_empty: bool = False

    @property
    def rows(self) -> Sequence[int]:
        """The rows of the plan's `sampling_rows`."""
        drawn = self.drawn_rows
        if self.asked:
            return self.asked
        return drawn if self.order is None else [drawn[place] for place in self.order]

    def logprobs(self) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Those of the rows that asked, of each position, once they are on the host."""
        if self.scores is None or self.scores_download is None:
            return {}
        return self.scores.read(self.scores_download.wait())


class Drawing:
    """The draws of all steps.

    Attributes:
        arrivals: where drawn tokens come to the host.
        blocks: memory for the masks of steps that are drawn late.
        num_tickets: draws that a ticket was given for; a step that fails after its draw must not be tried again.
    """

    def __init__(self, arena: Arena, space: Workspace, sampler: DeviceSampler) -> None:
        self._arena, self._space, self._sampler = arena, space, sampler
        sizes = arena.sizes
        columns = most_tokens(sizes) + (2 * sizes.max_num_seqs if sizes.max_width > 1 else 0)
        self.arrivals = Arrivals(arena.lengths.device, RING_SLOTS, columns)
        self.num_tickets = 0
        self._ring = 0
        self._masked_slot: int | None = None
        self.blocks = PinnedBlocks(
            vocab_size=sampler.vocab_size,
            most=max(sizes.max_num_seqs, MOST_DRAFTED if sizes.max_width > 1 else 0),
            device=arena.lengths.device,
        )

    def draw(self, logits: Tensor, places: Tensor, *, width: int = 0, pdl: bool) -> None:
        """Launch the draw of one token for each place, or of up to `width`; may be captured. `note_draw` or `ticket` must follow each run."""
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
            limits=arena.limits if width else None,
            width=max(width, 1),
            pdl=pdl,
        )

    def draw_masked(self, places: Tensor, *, width: int = 0, pdl: bool) -> None:
        """`draw` from the logits that the newest forward pass left, with the masks that were sent; may be captured."""
        logits = self._space.logits[: len(places) * max(width, 1)]
        self.blocks.exclude(logits)
        self.draw(logits, places, width=width, pdl=pdl)

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
        width: int = 0,
    ) -> CudaTicket:
        """Note where the tokens of the draw just queued, `masked` or not and of this `width`, will arrive."""
        slot = self.note_draw()
        self.arrivals.expect(slot)
        if masked:
            self._masked_slot = slot
        self.num_tickets += 1
        what: dict[str, Any] = {
            "drawn_rows": rows,
            "order": order,
            "prompt_scores": prompt_scores,
            "width": width,
        }
        return CudaTicket(step=step, slot=slot, **what)

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
        width: int = 0,
    ) -> CudaTicket:
        """Draw outside of a graph, with what the rows ask for before and after it; `places` begins with `rows`, `missing` get nothing.

        With a `width`, logits [S * width, vocab] are of as many positions of each row. Rows whose draws depend on earlier ones have no
        drafts: what is shaped of their later positions is not looked at.
        """
        # Scores are of the logits as the model made them; `process` returns a copy.
        special, places = self._sampler.special(rows), places[: len(rows)]
        asked: tuple[int, ...] = ()
        owners = tuple([row for row in rows for _ in range(width)]) if width > 1 else rows
        shaped = self._sampler.process(logits, owners) if special else logits
        ends = self._arena.lengths.index_select(0, places) if special and width > 1 else None
        if masks:
            self.blocks.exclude(shaped, self.blocks.send(masks, rows, max(width, 1)))
        if missing:
            drawn, given = [place for place, row in enumerate(rows) if row not in missing], order
            order = tuple(
                bisect_left(drawn, place) % len(drawn) if drawn else 0 for place in given or range(len(rows))
            )
            asked = tuple(rows[place] for place in given or range(len(rows))) if width else ()
            if not drawn:
                return CudaTicket(
                    step=step, order=order, prompt_scores=prompt_scores, asked=asked, width=width
                )
            index = torch.tensor(drawn, device=places.device)
            logits, shaped = (_of_rows(each, index, max(width, 1)) for each in (logits, shaped))
            places, rows = places.index_select(0, index), tuple(rows[place] for place in drawn)
            ends = None if ends is None else ends.index_select(0, index)
            owners = tuple([row for row in owners if row in rows])
        self.draw(shaped, places, width=width, pdl=False)
        ticket = self.ticket(step, rows, order, prompt_scores, masked=bool(masks), width=width)
        ticket.asked = asked
        if not special:
            return ticket
        tokens = self._newest(places)
        self._sampler.observe(rows, tokens)
        if ends is not None:  # as drafted, from where a draw was none
            ahead = ends.long()[:, None] + torch.arange(width, device=ends.device)
            tokens = self._arena.tokens[places.long()[:, None], ahead].long().clamp(min=0).flatten()
        scored = shaped if self._sampler.processed_logprobs else logits
        scores = self._sampler.score(scored, tokens, owners if width > 1 else rows)
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
        if ticket.slot is None and ticket.asked:
            counts = (0,) * len(ticket.asked)
            return StepResult(token_ids=[], counts=counts, prompt_logprobs=prompt_logprobs)
        if ticket.slot is None:
            return StepResult(token_ids=[0] * len(ticket.order or ()), prompt_logprobs=prompt_logprobs)
        if ticket.width:
            return self._collect_gained(ticket, ticket.slot, prompt_logprobs)
        drawn = self.arrivals.wait(ticket.slot, len(ticket.drawn_rows))
        broken: tuple[int, ...] = ()
        if min(drawn) < 0:  # the draw reports a logit that is not finite as -1 - token
            broken = tuple(row for row, token in zip(ticket.drawn_rows, drawn, strict=True) if token < 0)
        return StepResult(
            token_ids=drawn if ticket.order is None else [drawn[place] for place in ticket.order],
            logprobs=ticket.logprobs(),
            prompt_logprobs=prompt_logprobs,
            broken=broken,
        )

    def _collect_gained(
        self, ticket: CudaTicket, slot: int, prompt_logprobs: dict[int, dict[int, TokenLogprobs]]
    ) -> StepResult:
        """Of each row the number of its tokens, that of its drafts, and its tokens: see `sample_and_append`."""
        columns, rows = ticket.width + 2, ticket.rows
        arrived = self.arrivals.wait(slot, len(ticket.drawn_rows) * columns)
        places = {row: columns * place for place, row in enumerate(ticket.drawn_rows)}
        counts = tuple([arrived[places[row]] if row in places else 0 for row in rows])
        starts = [places.get(row, 0) + 2 for row in rows]
        gained = [arrived[start : start + count] for start, count in zip(starts, counts, strict=True)]
        count_of = dict(zip(rows, counts, strict=True))
        return StepResult(
            token_ids=[token for each in gained for token in each],
            counts=counts,
            num_drafts=sum(arrived[1::columns]),
            drafted_rows=sum(map(bool, arrived[1::columns])),
            logprobs={row: scores[: count_of[row]] for row, scores in ticket.logprobs().items()},
            prompt_logprobs=prompt_logprobs,
            broken=tuple(row for row, each in zip(rows, gained, strict=True) if min(each, default=0) < 0),
        )


def _of_rows(logits: Tensor, index: Tensor, width: int) -> Tensor:
    """The logits of some rows, each of which has `width` places."""
    return logits.view(-1, width, logits.shape[1]).index_select(0, index).flatten(0, 1)
