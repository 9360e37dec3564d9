"""A lane to an NVIDIA GPU: two pinned buffers that take turns, and a stream of its own."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.staging import PIECE_BYTES

MOST_LANES = 8
"""Eight threads fill pinned memory faster than PCIe 5 empties it."""


class CudaLane:
    """Reads into one buffer while the other is on its way. Pins memory, `2 * PIECE_BYTES` as a rule, on first use."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._arrivals = [
            torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            for _ in self._buffers
        ]
        self._turn = 0

    def buffer(self, num_bytes: int) -> Tensor:
        """The older buffer, uint8 [num_bytes], when its last content has arrived."""
        self._turn = 1 - self._turn
        self._arrivals[self._turn].synchronize()
        if self._buffers[self._turn].numel() < num_bytes:
            size = max(num_bytes, PIECE_BYTES)
            self._buffers[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._buffers[self._turn][:num_bytes]

    def send(self, staged: Tensor, destination: Tensor) -> None:
        """Queue a copy on the lane's stream; another dtype or layout is made on the device."""
        with torch.cuda.stream(self._stream):
            if staged.dtype != destination.dtype or not destination.is_contiguous():
                staged = staged.to(destination.device, non_blocking=True)
            destination.copy_(staged, non_blocking=True)
            self._arrivals[self._turn].record(self._stream)

    def drain(self) -> None:
        """Wait until everything sent has arrived."""
        self._stream.synchronize()


def cuda_lanes(device: torch.device) -> list[CudaLane]:
    """As many lanes as pay on this machine."""
    return [CudaLane(device) for _ in range(min(MOST_LANES, os.cpu_count() or 1))]
