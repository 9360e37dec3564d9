"""Masks of the tokens that grammars allow some rows of a step: written in memory of the host, where the device reads them as it draws."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import lock_pages
from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of masks take a multiple of, so that what is behind them lies as kernels like it."""


class PinnedMasks(MaskBlock):
    """Masks [most, words]; of each its place among the logits, below 0 for an unused one, and its address; and the row of each place that is drawn.

    The device has a copy of all but the masks: a kernel that reads them takes as long as it takes to send them, and does its work meanwhile. A step
    may write them once the device has drawn with those before.

    Attributes:
        rows: those of the device, `sink_row` for a place that gets nothing.
    """

    def __init__(self, *, vocab_size: int, most: int, sink_row: int, device: torch.device) -> None:
        half, words = -(-most // ALIGNED) * ALIGNED, -(-vocab_size // 32)
        self._most, self._sink_row, self._on_gpu = most, sink_row, device.type == "cuda"
        self._host = torch.full((4 * half + most * words,), -1, dtype=torch.int32, pin_memory=self._on_gpu)
        numbers = self._host.numpy()
        self._host_places, self._host_rows = numbers[:half], numbers[half : 2 * half]
        self._host_addresses = numbers[2 * half : 4 * half].view(np.int64)
        self._own = self._host.data_ptr() + 16 * half + 4 * words * np.arange(half)
        self._sent = torch.full_like(self._host[: 4 * half], -1, device=device)
        self._places, self.rows = self._sent[:half], self._sent[half : 2 * half].fill_(sink_row)
        self._addresses = self._sent[2 * half :].view(torch.int64)
        super().__init__(numbers[4 * half :].data.cast("B"), 4 * words)
        self.forget()

    def take(self, memory: memoryview, places: dict[int, int]) -> set[int]:
        """As in `MaskBlock`: masks that are among the first of a memory, as many as there are here, if it can be locked."""
        if memory is not self.shared:  # for the first time, or as workers were lost
            self._near = self._lock(memory)
        near = {number: place for number, place in places.items() if place < self._near}
        found = self._theirs.data_ptr() + self.width * np.array([*near.values()], np.int64)
        self._host_addresses[[*near]] = found
        return super().take(memory, near)

    def forget(self) -> None:
        """A step begins, none of whose masks is taken."""
        self.taken, self._host_addresses[:] = {}, self._own

    def _lock(self, memory: memoryview) -> int:
        """Have the device read the first masks of a memory; returns how many."""
        self._theirs = torch.frombuffer(memory[: len(self.memory)], dtype=torch.uint8)
        try:
            if self._on_gpu:
                lock_pages(self._theirs)
        except RuntimeError:
            with contextlib.suppress(RuntimeError):  # else the next launch would be blamed
                self._sent.fill_(-1)
            return 0
        return len(self._theirs) // self.width

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

    def send(self) -> None:
        """Have the device know where masks are and what for; returns at once. May be captured."""
        self._sent.copy_(self._host[: len(self._sent)], non_blocking=True)

    def exclude(self, logits: Tensor, count: int) -> None:
        """Exclude from logits [S, vocab] the tokens that so many masks do not allow, in place; may be captured."""
        mask_logits(logits, self._places[:count], self._addresses[:count])
