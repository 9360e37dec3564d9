"""Changes of the prefixes in an engine's KV cache, as a stream: for routers that send a request to where its prefix is.

Blocks are named by the chained hash of their tokens and of all before them, the same in every process that hashes alike. A consumer
that applies all events in order, from an engine's start on, knows of each cache group exactly which blocks can be found on the
device, and which in host memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import attrs

BlockHash = int | bytes
"""64 bits as an integer (which may be negative), or a digest."""
Tier = Literal["device", "host"]
"""Where a block is; it may be in both."""


@attrs.frozen
class BlockStored:
    """Blocks that follow each other in one text can be found from now on, in one cache group and one tier.

    Attributes:
        group: the number of the cache group.
        parent: the name of the block before the first one; None where that one begins the text.
        block_hashes: their names, in order.
        token_ids: what they hold, all blocks together; empty where the prompt was salted, which nobody else may read.
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
    """Where the events of one engine go."""

    def publish(self, events: Iterator[KVEvent], /) -> None:
        """Take what happened since the last time, in order; returns at once and raises nothing.

        The events are made as they are walked, which may be done later and in another thread.
        """
