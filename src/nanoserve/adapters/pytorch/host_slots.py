"""Host memory for KV blocks, and the copies between it and a cache that is in host memory, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.ports.step import SlotCopy


class HostSlots:
    """Fulfils the port: `count` slots, each with what all layers keep of one block.

    Memory that was never written costs nothing.
    """

    def __init__(self, kv: KVStore, count: int) -> None:
        """`kv` has one cache group."""
        self._blocks = kv.block_bytes()
        self.slot_bytes = self._blocks.shape[1]
        self._bytes = torch.empty(count, self.slot_bytes, dtype=torch.uint8)

    def view(self, slot: int, /) -> memoryview:
        """As in the port."""
        array: Any = self._bytes[slot].numpy()
        return memoryview(array)

    def store(self, copies: Sequence[SlotCopy]) -> None:
        """Carry blocks out."""
        for each in copies:
            self._bytes[each.slot].copy_(self._blocks[each.block])

    def load(self, copies: Sequence[SlotCopy]) -> None:
        """Bring blocks in."""
        for each in copies:
            self._blocks[each.block].copy_(self._bytes[each.slot])
