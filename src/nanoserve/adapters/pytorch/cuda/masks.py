"""What grammars allow some rows of a step to draw: written in host memory, and sent to the device before it draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of a block's masks take a multiple of, so that its masks lie as kernels like it."""


class PinnedBlock(MaskBlock):
    """Masks, int32 [max_rows, words], behind the places of their rows among the logits; below 0 for a mask of no row.

    The device has a copy of its own: reading the host's from a kernel takes more than twice as long as sending it.
    """

    def __init__(self, max_rows: int, words: int, device: torch.device) -> None:
        head, on_gpu = -(-max_rows // ALIGNED) * ALIGNED, device.type == "cuda"
        self._host = torch.full((head + max_rows * words,), -1, dtype=torch.int32, pin_memory=on_gpu)
        self._sent = self._host.to(device)
        self._head, self._words = head, words
        self._places, self._masks = self._sent[:head], self._sent[head:].view(max_rows, words)
        self._numbers = self._host[:head].numpy()
        super().__init__(self._host.numpy()[head:].data.cast("B"), 4 * words)

    def send(self, masks: Masks, rows: Sequence[int]) -> None:
        """Note which of the masks are used, for logits that are of these rows, and have the device take them; returns at once."""
        self._numbers.fill(-1)
        for place, row in enumerate(rows):
            if row in masks.numbers:
                self._numbers[masks.numbers[row]] = place
        if self._sent is not self._host:
            used = self._head + self._words * (max(masks.numbers.values(), default=-1) + 1)
            self._sent[:used].copy_(self._host[:used], non_blocking=True)

    def exclude(self, logits: Tensor) -> None:
        """Exclude from logits [S, vocab] what the sent masks do not allow, in place; may be captured."""
        mask_logits(logits, self._places[: len(logits)], self._masks[: len(logits)])


class PinnedBlocks:
    """Blocks of up to `max_rows` masks; one, and more only while late masks are written into it.

    A step takes its block once the device has drawn with what was in it.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._words, self._max_rows, self._device = -(-vocab_size // 32), max_rows, device
        self._blocks: list[PinnedBlock] = []

    def take(self) -> PinnedBlock:
        """The first that is not written to any more."""
        for block in self._blocks:
            if not block.is_written():
                return block
        self._blocks.append(PinnedBlock(self._max_rows, self._words, self._device))
        return self._blocks[-1]

    @property
    def first(self) -> PinnedBlock:
        """The one that nearly all steps take."""
        return self._blocks[0] if self._blocks else self.take()
