"""Copies KV blocks between the device and slots of host memory, beside the steps.

A block is one run of memory in both places, so that a copy of it is one request to a copy engine, which need not be waited for. There
is a stream for each direction, as the bus has two. Both follow what the steps' stream has been given before the copies: a stored
block was written there, and a loaded one may still have been read. Steps never wait for copies: the scheduler uses a block only
after its copy was reported. Where the cache is in host memory, too, each copy is done at once.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import structlog
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.step import StepPlan

CHUNK_BYTES: Final = 1 << 28
"""So many bytes are locked at a time; a power of two, to which torch rounds page-locked memory up."""


class HostSlots:
    """Fulfils the port of this name.

    All slots are there from the start, in plain memory, of which only what is written costs anything. The GPU copies by itself from
    and to memory that is page-locked, so for a GPU a thread locks other memory from now on, chunk by chunk, which takes tens of
    seconds for 100 GB; the engine starts or serves already, and waits only where it asks for a slot of a chunk that is not locked
    yet. Slots that cannot be locked are the plain ones, which works as well and is slower.

    Attributes:
        slot_bytes: bytes of one slot.
    """

    def __init__(self, count: int, slot_bytes: int, *, pinned: bool) -> None:
        """Raises `BadValueError` if the machine does not grant so much memory."""
        self.slot_bytes = slot_bytes
        self._per_chunk = max(1, CHUNK_BYTES // slot_bytes)
        try:
            self._plain = torch.empty(count, slot_bytes, dtype=torch.uint8)
        except (RuntimeError, MemoryError) as error:
            message = (
                f"the machine does not grant {count * slot_bytes} bytes of host memory; lower it ({error})"
            )
            raise BadValueError("kv_offload_memory", message) from error
        self._locked: list[Tensor] = []
        self._is_locking = pinned
        self._changed = threading.Condition()
        if pinned:
            lock = functools.partial(self._lock, count)
            threading.Thread(target=lock, name="host slots", daemon=True).start()

    def content(self, slot: int) -> Tensor:
        """The bytes of a slot, uint8 [slot_bytes]."""
        number, place = divmod(slot, self._per_chunk)
        if self._is_locking and number >= len(self._locked):
            with self._changed:
                self._changed.wait_for(lambda: not self._is_locking or number < len(self._locked))
        return self._locked[number][place] if number < len(self._locked) else self._plain[slot]

    def view(self, slot: int, /) -> memoryview:
        array: Any = self.content(slot).numpy()
        return memoryview(array)

    def _lock(self, count: int) -> None:
        try:
            for first in range(0, count, self._per_chunk):
                shape = min(self._per_chunk, count - first), self.slot_bytes
                chunk = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
                with self._changed:
                    self._locked.append(chunk)
                    self._changed.notify_all()
            self._plain = torch.empty(0, self.slot_bytes, dtype=torch.uint8)
        except Exception as error:  # noqa: BLE001 - whatever it is, slots must not be waited for
            structlog.get_logger().warning(
                "host memory for KV blocks cannot be locked in place, so that copies of what is not are slower",
                locked_bytes=min(count, len(self._locked) * self._per_chunk) * self.slot_bytes,
                bytes=count * self.slot_bytes,
                reason=str(error),
            )
        finally:
            with self._changed:
                self._is_locking = False
                self._changed.notify_all()


class Offload:
    """The copies of one runner.

    Attributes:
        slots: the host memory.
    """

    def __init__(self, kv: KVStore, count: int) -> None:
        """`kv` has one cache group, and there are `count` slots."""
        self._blocks = kv.block_bytes()
        on_gpu = self._blocks.is_cuda
        self.slots = HostSlots(count, self._blocks.shape[1], pinned=on_gpu)
        self._out, self._in = (
            torch.cuda.Stream(self._blocks.device) if on_gpu else None  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self._under_way: deque[tuple[int, list[Any]]] = deque()

    def start(self, plan: StepPlan) -> None:
        """Queue a plan's copies; later work of the current stream may run beside them."""
        if plan.starts_anew:
            self.finished(sys.maxsize, wait=True)  # nothing waits for their reports
        if plan.stores or plan.loads:
            stores = [(self.slots.content(each.slot), self._blocks[each.block]) for each in plan.stores]
            loads = [(self._blocks[each.block], self.slots.content(each.slot)) for each in plan.loads]
            done = [*_queue(self._out, stores), *_queue(self._in, loads)]
            self._under_way.append((plan.step, done))

    def finished(self, step: int, *, wait: bool) -> tuple[int, ...]:
        """The steps up to this one whose copies are done and were not reported yet; `wait`: all that have copies."""
        found = []
        while self._under_way and self._under_way[0][0] <= step:
            number, done = self._under_way[0]
            if not wait and not all(each.query() for each in done):
                break
            for each in done:
                each.synchronize()
            found.append(number)
            self._under_way.popleft()
        return tuple(found)


def _queue(stream: Any, copies: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Any]:
    """Copy sources into targets after all queued work of the current stream; yields events that tell when that is done."""
    if stream is None:
        for target, source in copies:
            target.copy_(source)
    elif copies:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(stream)
        yield done
