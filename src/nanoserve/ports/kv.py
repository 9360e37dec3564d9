"""The ports of the KV cache: events of the prefix cache, and blocks that are kept beside the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import attrs

from nanoserve.ports.engine_facts import TierCounts

BlockHash = int | bytes
"""64 bits as an integer (which may be negative), or a digest."""
Tier = Literal["device", "host"]
"""The tier of a block; it may be in both."""


@attrs.frozen
class BlockStored:
    """Blocks that follow each other in one text can be found from now on, in one cache group and one tier.

    Attributes:
        group: the number of the cache group.
        parent: the name of the block before the first one; None if that one begins the text.
        block_hashes: their names, in order.
        token_ids: what they hold, all blocks together; empty if the prompt was salted, which nobody else may read.
    """

    group: int
    parent: BlockHash | None
    block_hashes: tuple[BlockHash, ...]
    token_ids: tuple[int, ...]
    tier: Tier = "device"


@attrs.frozen
class BlockRemoved:
    """Blocks of one cache group cannot be found any more in one tier."""

    group: int
    block_hashes: tuple[BlockHash, ...]
    tier: Tier = "device"


@attrs.frozen
class AllBlocksCleared:
    """No block of any group can be found any more, in any tier."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventPublisher(Protocol):
    """The publisher of one engine's events."""

    def publish(self, events: Iterator[KVEvent], /) -> None:
        """Take the events since the last call, in order; returns at once and raises nothing.

        Events are made while the iterable is read, possibly later and in another thread.
        """


class HostSlots(Protocol):
    """The host memory of a runner: slots 0 to `EngineSizes.host_slots` - 1, of equal size."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, which are those of one KV block over all layers."""

    def view(self, slot: int, /) -> memoryview:
        """The bytes of a slot, readable and writable; contiguous, of format B. Callable in any thread."""


@attrs.frozen
class DirectoryWork:
    """A block was written to the directory from a slot, or read into one.

    Attributes:
        is_read: whether it was read.
        is_good: whether it was done; otherwise the block is absent, damaged or of another model, and the slot's bytes are
            undefined.
    """

    name: BlockHash
    slot: int
    is_read: bool
    is_good: bool


class BlockDirectory(Protocol):
    """Blocks by name on a disk; only `rest` waits for the disk, and no call raises.

    Every read, and every write that was accepted, is reported once. A slot is not touched after that.

    Attributes:
        room: the writes that it accepts now.
    """

    room: int

    def holds(self, name: BlockHash, /) -> bool:
        """True if the block is there, as far as is known without looking."""

    def read(self, name: BlockHash, slot: int, /) -> None:
        """Begin to read a block into a slot; reported by `finished`."""

    def write(self, name: BlockHash, slot: int, /) -> bool:
        """Begin to write a block from a slot, reported by `finished`; False if too much waits to be written already."""

    def finished(self) -> list[DirectoryWork]:
        """Return the copies that are done since the last call."""

    def rest(self) -> None:
        """Wait a moment, or until something is done."""

    def forget(self) -> None:
        """Forget all blocks, also those on their way to the disk; begun copies are still reported."""

    def counts(self) -> TierCounts:
        """The tier's content and its counters since it was opened."""
