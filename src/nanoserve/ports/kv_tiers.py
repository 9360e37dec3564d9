"""The ports of what is kept beside a device's KV cache: slots of host memory, each for one block, and a directory of blocks.

Which content is in which slot is the domain's business (`domain/kv/host_tier.py`). The runner owns the memory, and carries blocks
between its device and the slots as plans say; a directory reads and writes slots, in threads of its own.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from nanoserve.ports.engine_facts import TierCounts
from nanoserve.ports.kv_events import BlockHash


class HostSlots(Protocol):
    """The host memory of a runner: slots 0 to `EngineSizes.host_slots` - 1, of equal size."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, which are those of one KV block over all layers."""

    def view(self, slot: int, /) -> memoryview:
        """The bytes of a slot, to be read and written; contiguous, of format B. May be asked for in any thread."""


@attrs.frozen
class DirectoryWork:
    """A block was written to the directory from a slot, or read into one.

    Attributes:
        is_read: whether it was read.
        is_good: whether it was done; a block that was not is absent, damaged or not this model's, and the slot means nothing.
    """

    name: BlockHash
    slot: int
    is_read: bool
    is_good: bool


class BlockDirectory(Protocol):
    """Blocks by name, kept on a disk; no call waits for the disk but `rest`, and none raises.

    Every read, and every write that was accepted, is reported once. A slot is not touched after that.
    """

    def holds(self, name: BlockHash, /) -> bool:
        """True if the block is there, as far as is known without looking."""

    def read(self, name: BlockHash, slot: int, /) -> None:
        """Begin to bring a block into a slot; reported by `finished`."""

    def write(self, name: BlockHash, slot: int, /) -> bool:
        """Begin to write a block from a slot, reported by `finished`; False where too much waits to be written already."""

    def finished(self) -> list[DirectoryWork]:
        """Return the copies that are done since the last call."""

    def rest(self) -> None:
        """Wait a moment, or until something is done."""

    def forget(self) -> None:
        """Hold nothing any more, what is on its way to the disk included; what was begun is reported all the same."""

    def counts(self) -> TierCounts:
        """The tier's content and its counters since it was opened."""
