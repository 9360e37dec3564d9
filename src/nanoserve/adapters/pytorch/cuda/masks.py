"""What grammars allow some rows of a step to draw, in host memory that the device reads when it draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of a block's masks take a multiple of, so that its masks lie as kernels like it."""


class PinnedBlock(MaskBlock):
    """Masks, int32 [max_rows, words], behind the places of their rows among the logits; below 0 for a mask of no row."""

    def __init__(self, max_rows: int, words: int, *, pinned: bool) -> None:
        head = -(-max_rows // ALIGNED) * ALIGNED
        both = torch.full((head + max_rows * words,), -1, dtype=torch.int32, pin_memory=pinned)
        self._places, self._masks = both[:head], both[head:].view(max_rows, words)
        self._numbers = self._places.numpy()
        super().__init__(both.numpy()[head:].data.cast("B"), 4 * words)

    def place(self, masks: Masks, rows: Sequence[int]) -> None:
        """Note which of the masks are used, for logits that are of these rows."""
        self._numbers.fill(-1)
        for place, row in enumerate(rows):
            if row in masks.numbers:
                self._numbers[masks.numbers[row]] = place

    def exclude(self, logits: Tensor) -> None:
        """Exclude from logits [S, vocab] what the masks do not allow, in place; may be captured."""
        mask_logits(logits, self._places[: len(logits)], self._masks[: len(logits)])


class PinnedBlocks:
    """Blocks of up to `max_rows` masks; one, and more only while late masks are written into it.

    A step takes its block once the device has drawn with what was in it.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._words, self._max_rows, self._pinned = -(-vocab_size // 32), max_rows, device.type == "cuda"
        self._blocks: list[PinnedBlock] = []

    def take(self) -> PinnedBlock:
        """The first that is not written to any more."""
        for block in self._blocks:
            if not block.is_written():
                return block
        self._blocks.append(PinnedBlock(self._max_rows, self._words, pinned=self._pinned))
        return self._blocks[-1]

    @property
    def first(self) -> PinnedBlock:
        """The one that nearly all steps take."""
        return self._blocks[0] if self._blocks else self.take()
