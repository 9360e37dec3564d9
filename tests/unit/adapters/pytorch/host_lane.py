"""A lane that ends in host memory: it copies as late as a device may, so that a lane reused too early would show."""

from __future__ import annotations

import torch
from torch import Tensor


class HostLane:
    """Two buffers that take turns; a copy is made when its buffer is asked for again, or at the end."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.num_drained = 0
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._queued: list[tuple[Tensor, Tensor] | None] = [None, None]

    def buffer(self, num_bytes: int) -> Tensor:
        turn = self.num_sent % 2
        self._copy(turn)
        self._buffers[turn] = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
        return self._buffers[turn]

    def send(self, staged: Tensor, destination: Tensor) -> None:
        self._queued[self.num_sent % 2] = (staged, destination)
        self.num_sent += 1

    def drain(self) -> None:
        for turn in range(2):
            self._copy(turn)
        self.num_drained += 1

    def _copy(self, turn: int) -> None:
        if queued := self._queued[turn]:
            staged, destination = queued
            destination.copy_(staged)
        self._queued[turn] = None
