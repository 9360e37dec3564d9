"""Brings stored tensors to a device by several threads at once: file to staging buffer to device, piece by piece.

One thread copies from the page cache at a quarter of the speed at which a device takes pinned memory in, so a few share
the work. Each has a *lane* of its own: staging buffers, and a queue to the device behind them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import CPU
from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, fill

PIECE_BYTES = 8 * 2**20
"""Large enough for a copy to run at full speed, small enough for threads to finish together."""


@attrs.frozen(eq=False)
class Piece:
    """A run of numbers, stored as `dtype` in a file from byte `offset` on, or in a tensor of one run; and the part of a tensor they fill."""

    origin: Path | Tensor
    offset: int
    dtype: torch.dtype
    destination: Tensor

    @property
    def num_bytes(self) -> int:
        """Its size where it comes from."""
        return self.destination.numel() * self.dtype.itemsize

    def read_into(self, buffer: Tensor) -> None:
        """Fill uint8 [num_bytes] of the host."""
        if isinstance(self.origin, Path):
            fill([buffer], self.origin, self.offset)
            return
        last = self.offset + self.num_bytes
        _copy(self.origin.view(-1).view(torch.uint8)[self.offset : last], buffer)


class Lane(Protocol):
    """One thread's way to the device."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Host memory to write the next piece into, uint8 [num_bytes]; waits until what it held has been copied."""

    def send(self, staged: Tensor, destination: Tensor) -> None:
        """Queue the copy of a view of the newest buffer, converted to the destination's dtype."""

    def drain(self) -> None:
        """Wait until everything sent has arrived."""


def pieces_of(stored: StoredTensor, destination: Tensor) -> Iterator[Piece]:
    """Cut a tensor into pieces of about `PIECE_BYTES`; one that is not contiguous is cut between its rows."""
    rows = destination.view(-1) if destination.is_contiguous() else destination
    if not rows.numel():
        return
    row_bytes = rows.numel() // len(rows) * stored.data.dtype.itemsize
    step = max(1, PIECE_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        offset = stored.offset + start * row_bytes
        origin = stored.data if stored.in_memory else stored.file
        yield Piece(origin, offset, stored.data.dtype, rows[start : start + step])


def _copy(source: Tensor, destination: Tensor) -> None:
    """By this thread alone, where both are the host's: torch's copies would each call all others of the process."""
    alike = source.dtype == destination.dtype and source.is_contiguous() and destination.is_contiguous()
    if alike and source.device.type == destination.device.type == "cpu":
        ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        destination.copy_(source)


def transfer(pieces: Iterable[Piece], lanes: Sequence[Lane]) -> None:
    """Fill every piece's destination, one thread a lane, and return when all have arrived.

    The first error of any thread ends the others after the piece they are at, and is raised here.
    """
    pending = deque(pieces)
    errors: list[BaseException] = []
    with ThreadPoolExecutor(len(lanes), thread_name_prefix="weights") as pool:
        try:
            working = [pool.submit(_work, lane, pending, errors) for lane in lanes]
            while wait(working, timeout=1).not_done:
                pass  # a Ctrl-C that comes just before a wait begins is heard when it is over
        finally:
            pending.clear()
    if errors:
        raise errors[0]


@torch.inference_mode()
def _work(lane: Lane, pending: deque[Piece], errors: list[BaseException]) -> None:
    try:
        try:
            _send_all(lane, pending)
        finally:
            lane.drain()
    except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
        errors.append(error)
        pending.clear()


def _send_all(lane: Lane, pending: deque[Piece]) -> None:
    while True:
        try:
            piece = pending.popleft()
        except IndexError:
            return
        buffer = lane.buffer(piece.num_bytes)
        piece.read_into(buffer)
        lane.send(buffer.view(piece.dtype).view(piece.destination.shape), piece.destination)


class HostLane:
    """Read into host memory: a file that was cut meanwhile is an error, while a mapping would end the process."""

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def send(self, staged: Tensor, destination: Tensor) -> None:
        _copy(staged, destination)

    def drain(self) -> None:
        """Nothing is on its way."""


class FetchingLane(HostLane):
    """From a GPU to ordinary host memory, through a pinned buffer."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def buffer(self, num_bytes: int) -> Tensor:
        """The buffer, which this thread fills on a stream of its own."""
        torch.cuda.set_stream(self._stream)
        if self._buffer.numel() < num_bytes:
            size = max(num_bytes, PIECE_BYTES)
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._buffer[:num_bytes]


MOST_LANES = 8
"""Eight threads fill pinned memory faster than PCIe 5 empties it."""
MOST_HOST_LANES = 16
"""Threads that write into memory of the host whose pages are not there yet: 16 make them at 37 GB/s, 8 at 27."""


class CudaLane:
    """Reads into one buffer while the other is on its way. Pins memory, `2 * PIECE_BYTES` as a rule, on first use."""

    def __init__(self, device: torch.device) -> None:
        self._caller = torch.cuda.current_stream(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._arrivals = [torch.cuda.Event(blocking=True) for _ in range(2)]  # type: ignore[no-untyped-call]
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
        """Queue a copy on the lane's stream, behind what the caller's may still do with the destination's memory; another dtype or layout is made on the device."""
        self._stream.wait_stream(self._caller)
        with torch.cuda.stream(self._stream):
            if staged.dtype != destination.dtype or not destination.is_contiguous():
                staged = staged.to(destination.device, non_blocking=True)
            destination.copy_(staged, non_blocking=True)
            self._arrivals[self._turn].record(self._stream)

    def drain(self) -> None:
        self._stream.synchronize()


def count_lanes(most: int = MOST_LANES) -> int:
    """As many as pay on this machine."""
    return min(most, os.cpu_count() or 1)


def lanes_between(source: torch.device, destination: torch.device) -> Sequence[Lane]:
    """As many lanes as pay from a device, or from files beside it, to memory of the host or of a GPU; none within a GPU, which copies by itself."""
    if destination.type == "cuda":
        return [CudaLane(destination) for _ in range(count_lanes() if source.type == "cpu" else 0)]
    make = HostLane if source.type == "cpu" else functools.partial(FetchingLane, source)
    return [make() for _ in range(count_lanes(MOST_HOST_LANES))]


def brought(found: Iterable[StoredTensor], device: torch.device) -> Iterator[StoredTensor]:
    """Tensors of files as they are stored, in a device's memory; a few are read together, when the first of them is taken."""
    left = iter(found)
    while some := list(itertools.islice(left, 8)):  # few, as they lie beside what is made of them
        there = [torch.empty_like(each.data, device=device) for each in some]
        transfer(itertools.chain(*map(pieces_of, some, there)), lanes_between(CPU, device))
        yield from map(lambda each, data: attrs.evolve(each, data=data, in_memory=True), some, there)
