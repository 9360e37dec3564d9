"""Host memory for KV blocks, and the copies between it and a cache that is in host memory, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.step import SlotCopy


class HostSlots:
    """Fulfils the port: `count` slots, each with what every layer keeps of one block, one tensor after the other.

    Memory that was never written costs nothing.
    """

    def __init__(self, kv: KVStore, count: int) -> None:
        """`kv` has one cache group."""
        (self._pools,) = kv.pools
        pages = [pool[:, 0] for pool in self._pools]
        self.slot_bytes = sum(page.numel() * page.element_size() for page in pages)
        self._bytes = torch.empty(count, self.slot_bytes, dtype=torch.uint8)
        self._contents, start = [], 0
        for page in pages:
            end = start + page.numel() * page.element_size()
            # Slots begin where each dtype may: pages of all pools are of the same dtype.
            self._contents.append(self._bytes[:, start:end].view(page.dtype).view(count, *page.shape))
            start = end

    def view(self, slot: int, /) -> memoryview:
        """As in the port."""
        array: Any = self._bytes[slot].numpy()
        return memoryview(array)

    def store(self, copies: Sequence[SlotCopy]) -> None:
        """Carry blocks out."""
        for each in copies:
            for content, pool in zip(self._contents, self._pools, strict=True):
                content[each.slot].copy_(pool[:, each.block])

    def load(self, copies: Sequence[SlotCopy]) -> None:
        """Bring blocks in."""
        for each in copies:
            for content, pool in zip(self._contents, self._pools, strict=True):
                pool[:, each.block].copy_(content[each.slot])
