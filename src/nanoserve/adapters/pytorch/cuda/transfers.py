"""Numbers that go between host and device without making either wait, and the plain forms of that on a CPU.

`Uploads` sends runs of integers through pinned buffers that are used in turn. `Arrivals` is where tokens return.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.copies.launch import SEGMENT, pack_runs, scatter_runs

BUFFERS = 8
"""Enough for the uploads of two steps: each may send admissions, copies and its own description."""
SMALLEST_BUFFER = 1 << 16


class Uploads:
    """Sends packed runs of int32 values to the device, which reads them from the pinned buffers.

    Buffers grow with a step's needs and are reused once the device has read them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._buffers = [self._pinned(SMALLEST_BUFFER) for _ in range(BUFFERS)]
        self._read: list[Any] = [None] * BUFFERS
        self._turn = 0

    def scatter(self, target: Tensor, runs: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Write runs of (destination, values) into int32 `target` on the device, in the current stream's order."""
        turn = self._turn = (self._turn + 1) % BUFFERS
        if self._read[turn] is not None:  # the device may still be reading what was written then
            self._read[turn].synchronize()
        values = sum([len(each) for _, each in runs])
        needed = values + 3 * (len(runs) + values // SEGMENT)
        if needed > len(self._buffers[turn]):
            self._buffers[turn] = self._pinned(2 * needed)
        scatter_runs(target, self._buffers[turn], pack_runs(runs, self._buffers[turn]).segments)
        if self._on_gpu:
            if self._read[turn] is None:
                self._read[turn] = _event()
            self._read[turn].record()

    def _pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=self._on_gpu)


class Download:
    """One tensor on its way to the host."""

    def __init__(self, host: Tensor, arrived: Any, source: Tensor | None = None) -> None:
        self._host = host
        self._arrived = arrived
        self._source = source  # kept until it is copied

    def wait(self) -> Tensor:
        """The tensor on the host, once it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._source = None
        return self._host


class Arrivals:
    """Where the tokens of the last steps arrive: host memory that the kernel which draws them writes to by itself.

    A few hundred integers cross the bus faster than a copy can be asked for, and the host then waits for an event alone.

    Attributes:
        drawn: int32 [slots, width] of the host, which the device may write.
        waited_seconds: how long `wait` has kept the host in all, to tell its own time from the device's.
    """

    def __init__(self, device: torch.device, slots: int, width: int) -> None:
        self._on_gpu = device.type == "cuda"
        self.drawn = torch.zeros(slots, width, dtype=torch.int32, pin_memory=self._on_gpu)
        self._arrived: list[Any] = [_event() if self._on_gpu else None for _ in range(slots)]
        self._stream: Any = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self.waited_seconds = 0.0

    def expect(self, slot: int) -> None:
        """Note that the draw into this slot is among what the current stream has been given so far."""
        if self._on_gpu:
            self._arrived[slot].record()

    def reach(self, slot: int) -> None:
        """Wait until the device has done the draw that `expect` noted for this slot."""
        if self._on_gpu:
            self._arrived[slot].synchronize()

    def wait(self, slot: int, count: int) -> list[int]:
        """The first `count` integers of a slot, once they are here."""
        if self._on_gpu:
            started = time.perf_counter()
            self._arrived[slot].synchronize()
            self.waited_seconds += time.perf_counter() - started
        values: list[int] = self.drawn[slot, :count].tolist()
        return values

    def fetch(self, source: Tensor) -> Download:
        """Start to copy results of the current stream, on a stream that does not delay the next step."""
        if not self._on_gpu:
            return Download(source.clone(), None)
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            host.copy_(source, non_blocking=True)
        arrived = _event()
        arrived.record(self._stream)
        return Download(host, arrived, source)


def _event() -> Any:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
