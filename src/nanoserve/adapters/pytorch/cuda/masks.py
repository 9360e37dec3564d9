"""What grammars allow some rows of a step to draw, on its way to the device while the forward pass is under way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import MaskBlock, Masks

ALIGNED = 32
"""Words that the places of a block's masks take a multiple of, so that its masks lie as kernels like it."""


class PinnedBlock(MaskBlock):
    """Masks where the device can fetch them, int32 [max_rows, words], behind the places of their rows among the logits."""

    def __init__(self, max_rows: int, words: int, device: torch.device) -> None:
        self._words = words
        self._head = -(-max_rows // ALIGNED) * ALIGNED
        size = self._head + max_rows * words
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        self._places = self._host.numpy()[: self._head]
        self._applied: Any = None
        super().__init__(self._host.numpy()[self._head :].data.cast("B"), 4 * words)

    @property
    def is_free(self) -> bool:
        """Whether nobody reads or writes it any more."""
        return not self.is_written() and (self._applied is None or self._applied.query())

    def apply(self, logits: Tensor, places: list[int], stream: Any) -> None:
        """Exclude from logits [S, vocab] what the masks do not allow, each for its place; waits for no step under way."""
        count = len(places)
        self._places[:count] = places
        used = self._head + count * self._words
        if stream is not None:
            with torch.cuda.stream(stream):
                self._device[:used].copy_(self._host[:used], non_blocking=True)
            current = torch.cuda.current_stream()
            current.wait_stream(stream)
        masks = self._device[self._head : used].view(count, self._words)
        mask_logits(logits, self._device[:count], masks)
        if stream is not None:
            self._applied = self._applied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._applied.record(current)


class PinnedBlocks:
    """Blocks of up to `max_rows` masks; memory is taken when it is needed first, and more where masks are late."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._words, self._max_rows, self._device = -(-vocab_size // 32), max_rows, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._blocks: list[PinnedBlock] = []

    def take(self) -> PinnedBlock:
        """One that is free: the device has read it when a step behind it has come home."""
        for number, block in enumerate(self._blocks):
            if block.is_free:
                self._blocks.append(self._blocks.pop(number))  # the next step takes another one
                return block
        self._blocks.append(PinnedBlock(self._max_rows, self._words, self._device))
        return self._blocks[-1]

    def apply(self, logits: Tensor, masks: Masks, rows: Iterable[int]) -> None:
        """Exclude from logits [S, vocab], whose places are for these rows, what their masks do not allow."""
        if not masks:
            return
        assert isinstance(masks.block, PinnedBlock)
        places = [-1] * (max(masks.numbers.values()) + 1)
        for place, row in enumerate(rows):
            if row in masks.numbers:
                places[masks.numbers[row]] = place
        masks.block.apply(logits, places, self._stream)
