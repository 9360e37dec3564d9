"""KV blocks on their way between the GPU and slots of host memory, beside the steps.

A block is one run of memory in both places, so that a copy of it is one request to a copy engine, which need not be waited for. There
is a stream for each direction, as the bus has two. Both follow what the steps' stream has been given before the copies: a stored
block was written there, and a loaded one may still have been read. Steps never wait for copies: the scheduler uses a block only
after its copy was reported.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.step import StepPlan

CHUNK_BYTES: Final = 1 << 28
"""Slots are allocated so many bytes at a time; a power of two, to which torch rounds page-locked memory up."""


class PinnedSlots:
    """Fulfils the port `HostSlots`, in page-locked memory, which the GPU copies from and to by itself.

    To lock 100 GB takes tens of seconds. A thread does that from now on, chunk by chunk, while the engine starts or serves already;
    only who asks for a slot that is not there yet waits for it. Memory that cannot be locked is taken as it is, and is slower.

    Attributes:
        slot_bytes: bytes of one slot.
    """

    def __init__(self, count: int, slot_bytes: int, *, pinned: bool) -> None:
        self.slot_bytes = slot_bytes
        self._per_chunk = max(1, CHUNK_BYTES // slot_bytes)
        self._chunks: list[Tensor] = []
        self._grown = threading.Condition()
        allocate = functools.partial(self._allocate, count, pinned=pinned)
        threading.Thread(target=allocate, name="host slots", daemon=True).start()

    def content(self, slot: int) -> Tensor:
        """The bytes of a slot, uint8 [slot_bytes]."""
        number, place = divmod(slot, self._per_chunk)
        if number >= len(self._chunks):
            with self._grown:
                self._grown.wait_for(lambda: number < len(self._chunks))
        return self._chunks[number][place]

    def view(self, slot: int, /) -> memoryview:
        """As in the port."""
        array: Any = self.content(slot).numpy()
        return memoryview(array)

    def _allocate(self, count: int, *, pinned: bool) -> None:
        for first in range(0, count, self._per_chunk):
            shape = min(self._per_chunk, count - first), self.slot_bytes
            try:
                chunk = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
            except RuntimeError:
                chunk = torch.empty(shape, dtype=torch.uint8)
            with self._grown:
                self._chunks.append(chunk)
                self._grown.notify_all()


class Offload:
    """The copies of one runner; on a CPU, where kernels are interpreted, each is done at once.

    Attributes:
        slots: the host memory.
    """

    def __init__(self, kv: KVStore, count: int) -> None:
        """`kv` has one cache group, and there are `count` slots."""
        self._blocks = kv.block_bytes()
        on_gpu = self._blocks.is_cuda
        self.slots = PinnedSlots(count, self._blocks.shape[1], pinned=on_gpu)
        self._out, self._in = (
            torch.cuda.Stream(self._blocks.device) if on_gpu else None  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self._under_way: deque[tuple[int, list[Any]]] = deque()

    def start(self, plan: StepPlan) -> None:
        """Queue a plan's copies; what the current stream is given from now on may run beside them."""
        if plan.starts_anew:
            self._forget()
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

    def _forget(self) -> None:
        """Let copies end whose reports nothing waits for."""
        for _, done in self._under_way:
            for each in done:
                each.synchronize()
        self._under_way.clear()


def _queue(stream: Any, copies: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Any]:
    """Copy sources into targets behind all that the current stream has to do; yields what tells when that is done."""
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
