"""Masks of the tokens that grammars allow some rows of a step: written in host memory, and sent to the device before it draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of a block's masks take a multiple of, so that its masks lie as kernels like it."""


class PinnedBlock(MaskBlock):
    """Masks, int32 [most, words], after their places among the logits; below 0 for an unused mask."""

    def __init__(self, most: int, words: int, device: torch.device) -> None:
        self.head, on_gpu = -(-most // ALIGNED) * ALIGNED, device.type == "cuda"
        self.host = torch.full((self.head + most * words,), -1, dtype=torch.int32, pin_memory=on_gpu)
        self.numbers = self.host[: self.head].numpy()
        super().__init__(self.host.numpy()[self.head :].data.cast("B"), 4 * words)


class PinnedBlocks:
    """Blocks of up to `most` masks; one, and more only while late masks are written into it.

    A step takes its block once the device has drawn with its old masks. The device has one copy, which all blocks are sent to:
    reading the host's from a kernel takes more than twice as long as sending it.
    """

    def __init__(self, *, vocab_size: int, most: int, device: torch.device) -> None:
        self._words, self._most, self._device = -(-vocab_size // 32), most, device
        first = PinnedBlock(most, self._words, device)
        self._blocks = [first]
        self._sent = torch.full_like(first.host, -1, device=device)
        self._places, self._masks = self._sent[: first.head], self._sent[first.head :].view(most, -1)

    def take(self) -> PinnedBlock:
        """The first that is not written to any more."""
        for block in self._blocks:
            if not block.is_written():
                return block
        self._blocks.append(PinnedBlock(self._most, self._words, self._device))
        return self._blocks[-1]

    def send(self, masks: Masks, rows: Sequence[int], width: int = 1) -> int:
        """Note which of the masks are used, for `width` logits of each of these rows, and have the device take them; returns at once.

        Returns behind which number none is used.
        """
        block, places, used, counts = masks.block, [-1] * self._most, 0, masks.counts
        assert isinstance(block, PinnedBlock)
        for place, row in enumerate(rows):
            if (first := masks.numbers.get(row)) is not None:
                for ahead in range(min(counts.get(row, 1), width) if counts else 1):
                    places[first + ahead] = place * width + ahead
                used = max(used, first + ahead + 1)
        block.numbers[: self._most] = places
        end = block.head + self._words * used
        self._sent[:end].copy_(block.host[:end], non_blocking=True)
        return used

    def exclude(self, logits: Tensor, used: int | None = None) -> None:
        """Exclude from logits [S, vocab] the tokens that the sent masks do not allow, in place; may be captured.

        Without `used`, from `send`, no more masks must have been sent than there are logits.
        """
        used = len(logits) if used is None else used
        mask_logits(logits, self._places[:used], self._masks[:used])
