"""Brings stored tensors to a device by several threads at once: file to staging buffer to device, piece by piece.

One thread copies from the page cache at a quarter of the speed at which a device takes pinned memory in, so a few share
the work. Each has a *lane* of its own: staging buffers, and a queue to the device behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.weights.safetensors_file import StoredTensor, read_into

PIECE_BYTES = 8 * 2**20
"""Large enough for a copy to run at full speed, small enough for threads to finish together."""


@attrs.frozen(eq=False)
class Piece:
    """A run of numbers in a file, stored as `dtype` from byte `offset` on, and the part of a tensor they fill."""

    file: Path
    offset: int
    dtype: torch.dtype
    destination: Tensor

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return self.destination.numel() * self.dtype.itemsize


class Lane(Protocol):
    """One thread's way to the device."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Host memory to write the next piece into, uint8 [num_bytes]; waits until what it held has been copied."""
        ...

    def send(self, staged: Tensor, destination: Tensor) -> None:
        """Queue the copy of a view of the newest buffer, converted to the destination's dtype."""
        ...

    def drain(self) -> None:
        """Wait until everything sent has arrived."""
        ...


def pieces_of(stored: StoredTensor, destination: Tensor) -> Iterator[Piece]:
    """Cut a tensor into pieces of about `PIECE_BYTES`; one that is not contiguous is cut between its rows."""
    rows = destination.view(-1) if destination.is_contiguous() else destination
    if not rows.numel():
        return
    row_bytes = rows.numel() // len(rows) * stored.data.dtype.itemsize
    step = max(1, PIECE_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        offset = stored.offset + start * row_bytes
        yield Piece(stored.file, offset, stored.data.dtype, rows[start : start + step])


def transfer(pieces: Iterable[Piece], lanes: Sequence[Lane]) -> None:
    """Fill every piece's destination, one thread a lane, and return when all have arrived.

    The first error of any thread ends the others after the piece they are at, and is raised here.
    """
    pending = deque(pieces)
    errors: list[BaseException] = []
    with ThreadPoolExecutor(len(lanes), thread_name_prefix="weights") as pool:
        try:
            wait([pool.submit(_work, lane, pending, errors) for lane in lanes])
        finally:
            pending.clear()
    if errors:
        raise errors[0]


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
        read_into(buffer, piece.file, piece.offset)
        lane.send(buffer.view(piece.dtype).view(piece.destination.shape), piece.destination)
