"""Draws a step's tokens into their rows, and sends them to the host: the end of every step that samples.

The kernel that draws appends each token to its row and writes it to a slot of a ring in host memory. Device and host each count the draws, so both know the
slot without asking; `find_ring` makes them agree again after a failure. `special_draws.py` draws for rows that ask for more than a token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import most_tokens
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.cuda.transfers import Arrivals
from nanoserve.kernels.sampling.launch import DrawScratch, sample_and_append

RING_SLOTS = 16
"""Steps whose tokens are kept for the host to fetch: more than can be in flight, captures included."""


class Drawing:
    """The draws of all steps.

    Attributes:
        arrivals: where drawn tokens come to the host.
        num_tickets: draws that a ticket was given for; a step that fails after its draw must not be tried again.
    """

    def __init__(self, arena: Arena, scratch: DrawScratch) -> None:
        self._arena, self._scratch, sizes = arena, scratch, arena.sizes
        columns = most_tokens(sizes) + (2 * sizes.max_num_seqs if sizes.max_width > 1 else 0)
        self.arrivals = Arrivals(arena.lengths.device, RING_SLOTS, columns)
        self.num_tickets = self._ring = 0

    def draw(self, logits: Tensor, places: Tensor, *, width: int = 0, pdl: bool, **instead: Tensor) -> None:
        """Launch the draw of one token for each place, or of up to `width`; may be captured. `note_draw` or `issue` must follow each run.

        That is not so where a draw goes elsewhere `instead`, by arguments of `sample_and_append`.
        """
        arena = self._arena
        rows: dict[str, Any] = {"tokens": arena.tokens, "lengths": arena.lengths, "seeds": arena.seeds}
        rows |= {"num_prompt_tokens": arena.num_prompt_tokens, **arena.settings}
        rows |= {"drawn": self.arrivals.drawn, "ring_position": arena.ring_position, **instead}
        how: dict[str, Any] = {"limits": arena.limits if width else None, "width": max(width, 1), "pdl": pdl}
        sample_and_append(logits, batch_rows=places, **rows, scratch=self._scratch, **how)

    def note_draw(self) -> int:
        """A draw has been queued; returns the slot of its tokens."""
        slot = self._ring
        self._ring = (slot + 1) % RING_SLOTS
        return slot

    def find_ring(self) -> None:
        """Take the device's count of draws for the host's; waits for the device."""
        self._ring = int(self._arena.ring_position) % RING_SLOTS

    def issue(self, ticket: CudaTicket) -> CudaTicket:
        """Note where the tokens of the draw just queued will arrive."""
        ticket.slot = slot = self.note_draw()
        self.arrivals.expect(slot)
        self.num_tickets += 1
        return ticket
