"""What grammars allow some rows of a step to draw, on its way to the device while the forward pass is under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.sampling.launch import mask_logits
from nanoserve.ports.grammar import Mask

TURNS = 2
"""Buffers that are used in turn: one may be filled while the device reads the other."""


class _Buffer:
    """A pinned copy and one on the device, int32 [max_rows, 1 + words]: each row's place, then its mask."""

    def __init__(self, max_rows: int, words: int, device: torch.device) -> None:
        self.host = torch.zeros(max_rows, 1 + words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.bytes = self.host.numpy().data.cast("B")
        self.device = self.host if device.type == "cpu" else torch.zeros_like(self.host, device=device)
        self.applied: Any = None


class Masks:
    """Masks of up to `max_rows` rows of logits; its memory is taken when it is needed first."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._words, self._max_rows, self._device = -(-vocab_size // 32), max_rows, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._buffers: list[_Buffer] = []
        self._turn = 0

    def apply(self, logits: Tensor, masks: Mapping[int, Mask]) -> None:
        """Exclude from logits [S, vocab] what the masks, by place, do not allow; waits for no step that is under way."""
        if not masks:
            return
        if not self._buffers:
            self._buffers = [_Buffer(self._max_rows, self._words, self._device) for _ in range(TURNS)]
        self._turn = (self._turn + 1) % TURNS
        buffer = self._buffers[self._turn]
        if buffer.applied is not None:
            buffer.applied.synchronize()  # of the draw before the last: its tokens are here already
        self._fill(buffer, masks)
        if self._stream is None:
            mask_logits(logits, buffer.device[: len(masks)])
            return
        with torch.cuda.stream(self._stream):
            buffer.device[: len(masks)].copy_(buffer.host[: len(masks)], non_blocking=True)
        current = torch.cuda.current_stream()
        current.wait_stream(self._stream)
        mask_logits(logits, buffer.device[: len(masks)])
        if buffer.applied is None:
            buffer.applied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        buffer.applied.record(current)

    def _fill(self, buffer: _Buffer, masks: Mapping[int, Mask]) -> None:
        width = 4 * self._words
        for number, (place, mask) in enumerate(masks.items()):
            start = number * (4 + width)
            end = start + 4 + min(len(mask), width)
            buffer.bytes[start : start + 4] = place.to_bytes(4, "little")
            buffer.bytes[start + 4 : end] = mask[:width]
            buffer.bytes[end : start + 4 + width] = bytes(start + 4 + width - end)
