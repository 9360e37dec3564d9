"""Draws of steps in which rows follow a grammar: the forward pass is queued at once, the draw when the masks are there."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.decoding import Decoding
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.ports.grammar import Masks
from nanoserve.ports.step import StepPlan


class MaskedDraws:
    """Holds the one draw that waits for its masks; `logits` are those of the workspace."""

    def __init__(
        self,
        arena: Arena,
        logits: Tensor,
        batches: Batches,
        *,
        decoding: Decoding,
        drawing: Drawing,
        special: SpecialDraws,
    ) -> None:
        self._arena, self._logits, self._batches = arena, logits, batches
        self._decoding, self._drawing, self._special = decoding, drawing, special
        self._held: tuple[tuple[int, ...], Callable[..., CudaTicket]] | None = None

    def hold(self, plan: StepPlan, draw: Callable[..., CudaTicket]) -> CudaTicket:
        """Keep a plan's draw, a function of `masks` and of rows that are `missing` one; returns the ticket of its forward pass."""
        self._held = plan.masked, draw
        return CudaTicket(step=plan.step)

    def draw(self, ticket: CudaTicket, masks: Masks) -> None:
        """Queue the draw that is held; rows without a mask get nothing."""
        held, self._held = self._held, None
        assert held is not None
        masked, draw = held
        missing = set(masked) - masks.keys()
        ticket.late = draw(masks=masks, missing=missing)
        if not ticket.late.width:
            self._batches.take_back(missing)

    def draw_decoding(
        self, plan: StepPlan, ticket: CudaTicket, *, masks: Masks, missing: set[int]
    ) -> CudaTicket:
        """Draw by a graph, if it is for all rows and as wide as was planned."""
        rows, width = ticket.drawn_rows, max(ticket.width, 1)
        if missing or plan.width > width:
            logits, places = self._logits[: len(rows) * width], self._arena.places
            return self._special.sample(ticket, logits, places, masks=masks, missing=missing)
        self._special.blocks.send(masks, rows, width)
        self._decoding.run(self._decoding.draw_key(len(rows), ticket.width))
        return self._drawing.issue(ticket, masked=True)
