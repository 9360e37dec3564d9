"""Masks of the tokens that grammars allow some rows of a step: written in host memory, and sent to the device before it draws."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of masks take a multiple of, so that masks lie as kernels like it."""


class PinnedMasks(MaskBlock):
    """Masks [most, words] behind their places among the logits, below 0 for an unused mask, and the row of each place that is drawn; all int32.

    The device has a copy: to read the host's from a kernel takes more than twice as long as to send it. A step may write them once the device
    has drawn with those before.

    Attributes:
        rows: those of the device, `sink_row` for a place that gets nothing.
    """

    def __init__(self, *, vocab_size: int, most: int, sink_row: int, device: torch.device) -> None:
        half, words = -(-most // ALIGNED) * ALIGNED, -(-vocab_size // 32)
        self._head, self._words, self._most, self._sink_row = 2 * half, words, most, sink_row
        on_gpu = device.type == "cuda"
        self._host = torch.full((2 * half + most * words,), -1, dtype=torch.int32, pin_memory=on_gpu)
        numbers = self._host.numpy()
        self._host_places, self._host_rows = numbers[:half], numbers[half : 2 * half]
        self._sent = torch.full_like(self._host, -1, device=device)
        self._places, self.rows = self._sent[:half], self._sent[half : 2 * half].fill_(sink_row)
        self._masks = self._sent[2 * half :].view(most, words)
        super().__init__(numbers[2 * half :].data.cast("B"), 4 * words)

    def note(self, masks: Masks, rows: Sequence[int], width: int = 1, missing: Collection[int] = ()) -> int:
        """Note which of the masks are used, for `width` logits of each of these rows; those `missing` one get nothing.

        Returns behind which number none is used.
        """
        assert masks.block is self
        places, used, counts, find = [-1] * self._most, 0, masks.counts, masks.numbers.get
        for place, row in enumerate(rows):
            if (first := find(row)) is not None:
                for ahead in range(min(counts.get(row, 1), width)) if counts else (0,):
                    places[first + ahead] = place * width + ahead
                used = first + ahead + 1 if used <= first else used
        self._host_places[:], self._host_rows[:] = -1, self._sink_row
        self._host_places[:used] = places[:used]
        drawn = [self._sink_row if row in missing else row for row in rows] if missing else rows
        self._host_rows[: len(rows)] = drawn
        return used

    def send(self, count: int) -> None:
        """Have the device take so many masks; returns at once. May be captured."""
        end = self._head + self._words * min(count, self._most)
        self._sent[:end].copy_(self._host[:end], non_blocking=True)

    def exclude(self, logits: Tensor, count: int) -> None:
        """Exclude from logits [S, vocab] the tokens that so many sent masks do not allow, in place; may be captured."""
        mask_logits(logits, self._places[:count], self._masks[:count])
