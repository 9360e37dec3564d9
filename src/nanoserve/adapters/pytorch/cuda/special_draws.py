"""Draws of rows that ask for more than a token: logits that are shaped first, masks, log-probabilities, rows that get nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import NO_DRAFT, Arena
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.masks import PinnedMasks
from nanoserve.adapters.pytorch.cuda.tickets import ComingScores, CudaTicket
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.grammar import MOST_DRAFTED, Masks
from nanoserve.ports.step import StepPlan

Run = Callable[[int, int, int], None]
"""Draws for rows of a width, with so many masks."""


def most_masks(sizes: EngineSizes) -> int:
    """The most masks of a step: of rows with drafts, and beside those of rows whose prompts end."""
    return sizes.max_num_seqs + (MOST_DRAFTED if sizes.max_width > 1 else 0)


class SpecialDraws:
    """Made by a `Drawing`, outside of graphs except those with masks; `logits` are those of the workspace.

    Attributes:
        masks: of the step that is drawn late.
        then: what is to be launched behind the draw of the step that is computed, and once only.
    """

    def __init__(self, arena: Arena, logits: Tensor, sampler: DeviceSampler, drawing: Drawing) -> None:
        self._arena, self._logits, self._sampler, self._drawing = arena, logits, sampler, drawing
        self._held: tuple[tuple[int, ...], Callable[..., CudaTicket]] | None = None
        # The newest draw with masks, until their memory is lent for others.
        self._masked: CudaTicket | None = None
        self.then: Callable[[], object] | None = None
        most, device = most_masks(arena.sizes), arena.lengths.device
        self.masks = PinnedMasks(
            vocab_size=sampler.vocab_size, most=most, sink_row=arena.sink_row, device=device
        )

    def hold(self, plan: StepPlan, draw: Callable[..., CudaTicket]) -> CudaTicket:
        """Keep a plan's draw, a function of `masks` and of rows that are `missing` one; returns the ticket of its forward pass."""
        self._held = plan.masked, draw
        return CudaTicket(step=plan.step)

    def draw_held(self, ticket: CudaTicket, masks: Masks) -> set[int]:
        """Queue the draw that is held; returns the rows that get nothing, as there is no mask for them."""
        assert self._held is not None
        (masked, draw), self._held = self._held, None
        missing = set(masked) - masks.numbers.keys()
        ticket.late = draw(masks=masks, missing=missing)
        return missing

    def draw_masked(self, places: Tensor, *, masks: int, width: int = 0, pdl: bool) -> None:
        """Launch a draw with the noted masks, up to so many, from the logits that the newest forward pass left; may be captured."""
        logits = self._logits[: len(places) * max(width, 1)]
        self.masks.send()
        self.masks.exclude(logits, masks)
        self._drawing.draw(logits, places, width=width, pdl=pdl)

    def draw_behind(
        self, plan: StepPlan, ticket: CudaTicket, run: Run, *, masks: Masks, missing: set[int]
    ) -> CudaTicket:
        """Draw what a plan's forward pass has left: by `run`, which may replay a graph, if it is as wide as was planned, and narrow where rows are missing."""
        rows, width = ticket.drawn_rows, max(ticket.width, 1)
        if plan.width > width or (missing and ticket.width):
            logits = self._logits[: len(rows) * width]
            return self.sample(ticket, logits, self._arena.places, masks=masks, missing=missing)
        run(len(rows), ticket.width, self.masks.note(masks, rows, width, missing))
        self.finish()
        self._masked = self._drawing.issue(ticket)
        return ticket

    def lend_masks(self) -> PinnedMasks:
        """Memory for a step's masks; waits for the draw with those before, which ranks that follow another one do not collect."""
        if self._masked is not None and self._masked.slot is not None:
            self._drawing.arrivals.reach(self._masked.slot)
        self._masked = None
        self.masks.forget()
        return self.masks

    def finish(self, drawn: CudaTicket | None = None) -> None:
        """Note the draw just queued for a ticket, if one is given, and launch the kernels after it."""
        if drawn is not None:
            self._drawing.issue(drawn)
        then, self.then = self.then, None
        if then is not None:
            then()

    def sample(
        self,
        ticket: CudaTicket,
        logits: Tensor,
        places: Tensor,
        *,
        masks: Masks | None = None,
        missing: Collection[int] = (),
    ) -> CudaTicket:
        """Draw for a ticket's rows, with their work before and after it; `places` begins with them, `missing` get nothing.

        With a width, logits [S * width, vocab] are of as many positions of each row, each of which is shaped as behind the row's drafts.
        """
        # Scores are of the logits as the model made them; `process` returns a copy.
        rows, width, given = ticket.drawn_rows, ticket.width, ticket.order
        special, places = self._sampler.special(rows), places[: len(rows)]
        owners, ends, shaped = self._shape(rows, places, logits, width) if special else (rows, None, logits)
        if masks:
            used = self.masks.note(masks, rows, max(width, 1))
            self.masks.send()
            self.masks.exclude(shaped, used)
        if missing:
            drawn = [place for place, row in enumerate(rows) if row not in missing]
            ticket.order = tuple(
                bisect_left(drawn, place) % len(drawn) if drawn else 0 for place in given or range(len(rows))
            )
            ticket.asked = tuple(rows[place] for place in given or range(len(rows))) if width else ()
            ticket.drawn_rows = rows = tuple(rows[place] for place in drawn)
            index = torch.tensor(drawn, dtype=torch.int64, device=places.device)
            logits, shaped = (_of_rows(each, index, max(width, 1)) for each in (logits, shaped))
            places = places.index_select(0, index)
            ends = None if ends is None else ends.index_select(0, index)
            owners = tuple([row for row in owners if row in rows])
        if rows:
            self._drawing.draw(shaped, places, width=width, pdl=False)
            self._drawing.issue(ticket)
            self._masked = ticket if masks else self._masked
            if special:
                ticket.scores = self._note(owners, places, ends, logits, shaped)
        self.finish()
        return ticket

    def draw_window(
        self, rows: tuple[int, ...], places: Tensor, logits: Tensor, width: int, **instead: Tensor
    ) -> ComingScores | None:
        """Draw `width` places of each of `rows`, int32 `places` on the device, as `Drawing.draw` does; returns their scores."""
        special = self._sampler.special(rows)
        owners, ends, shaped = self._shape(rows, places, logits, width) if special else (rows, None, logits)
        self._drawing.draw(shaped, places, width=width, pdl=False, **instead)
        return self._note(owners, places, ends, logits, shaped) if special else None

    def _shape(
        self, rows: tuple[int, ...], places: Tensor, logits: Tensor, width: int
    ) -> tuple[tuple[int, ...], Tensor | None, Tensor]:
        """The row of each of the logits, where `places` end if they are wide, and the logits to draw from."""
        if width <= 1:
            return rows, None, self._sampler.process(logits, rows)
        owners = tuple([row for row in rows for _ in range(width)])
        ends = self._arena.lengths.index_select(0, places).long()
        return owners, ends, self._sampler.process(logits, owners, self._before(places, ends, width))

    def _note(
        self, owners: tuple[int, ...], places: Tensor, ends: Tensor | None, logits: Tensor, shaped: Tensor
    ) -> ComingScores | None:
        """Take note of what was just drawn, and score it where a row wants that."""
        lengths = self._arena.lengths.index_select(0, places).long()
        if ends is None:
            gained = tokens = self._arena.tokens[places.long(), lengths - 1].long()  # [S]
        else:  # behind what was drawn stands what was drafted
            ahead = torch.arange(len(owners) // len(places), device=ends.device)
            tokens = self._arena.tokens[places.long()[:, None], ends[:, None] + ahead].long().clamp(min=0)
            gained = tokens.where(ahead < (lengths - ends)[:, None], self._sampler.vocab_size).flatten()
            tokens = tokens.flatten()
        self._sampler.observe(owners, gained)
        scored = shaped if self._sampler.processed_logprobs else logits
        scores = self._sampler.score(scored, tokens, owners)
        if scores is None:
            return None
        return ComingScores(scores, self._drawing.arrivals.fetch(scores.packed))

    def _before(self, places: Tensor, ends: Tensor, width: int) -> Tensor:
        """The drafts before each of `width` positions from the ends [S] of these rows on, int32 [S * width, width - 1], -1 where there are no more."""
        ahead = torch.arange(width, device=ends.device)
        drafts = self._arena.tokens[places.long()[:, None], ends[:, None] + ahead[:-1]]
        return drafts[:, None].where(ahead[:-1] < ahead[:, None], NO_DRAFT).flatten(0, 1).contiguous()


def _of_rows(logits: Tensor, index: Tensor, width: int) -> Tensor:
    """The logits of some rows, each of which has `width` places."""
    return logits.view(-1, width, logits.shape[1]).index_select(0, index).flatten(0, 1)
