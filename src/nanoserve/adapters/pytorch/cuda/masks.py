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
    """Masks, int32 [max_rows, words], behind the places of their rows among the logits; below 0 for a mask of no row."""

    def __init__(self, max_rows: int, words: int, device: torch.device) -> None:
        self.head, on_gpu = -(-max_rows // ALIGNED) * ALIGNED, device.type == "cuda"
        self.host = torch.full((self.head + max_rows * words,), -1, dtype=torch.int32, pin_memory=on_gpu)
        self.numbers = self.host[: self.head].numpy()
        super().__init__(self.host.numpy()[self.head :].data.cast("B"), 4 * words)


class PinnedBlocks:
    """Blocks of up to `max_rows` masks; one, and more only while late masks are written into it.

    A step takes its block once the device has drawn with what was in it. The device has one copy, which all blocks are sent to:
    reading the host's from a kernel takes more than twice as long as sending it.
    """

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._words, self._max_rows, self._device = -(-vocab_size // 32), max_rows, device
        first = PinnedBlock(max_rows, self._words, device)
        self._blocks = [first]
        self._sent = torch.full_like(first.host, -1, device=device)
        self._places, self._masks = self._sent[: first.head], self._sent[first.head :].view(max_rows, -1)

    def take(self) -> PinnedBlock:
        """The first that is not written to any more."""
        for block in self._blocks:
            if not block.is_written():
                return block
        self._blocks.append(PinnedBlock(self._max_rows, self._words, self._device))
        return self._blocks[-1]

    def send(self, masks: Masks, rows: Sequence[int]) -> None:
        """Note which of the masks are used, for logits that are of these rows, and have the device take them; returns at once."""
        block = masks.block
        assert isinstance(block, PinnedBlock)
        block.numbers.fill(-1)
        for place, row in enumerate(rows):
            if row in masks.numbers:
                block.numbers[masks.numbers[row]] = place
        used = block.head + self._words * (max(masks.numbers.values(), default=-1) + 1)
        self._sent[:used].copy_(block.host[:used], non_blocking=True)

    def exclude(self, logits: Tensor) -> None:
        """Exclude from logits [S, vocab] what the sent masks do not allow, in place; may be captured."""
        mask_logits(logits, self._places[: len(logits)], self._masks[: len(logits)])
