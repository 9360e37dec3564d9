"""Puts a router together: the policies and the index that simulations run, fed by what replicas publish."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from nanoserve.ports.kv import KVEvent
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex
from nanoserve_cluster.domain.routing.reported_blocks import ReportedBlocks
from nanoserve_cluster.domain.routing.router import Placement, Router

__all__ = ["Placement", "RoutingTable"]

_MOST_BLOCKS: Final = 2**18
"""Blocks that are remembered of one replica: 4 million tokens in blocks of 16, more than a GPU's cache holds."""


class RoutingTable(Router):
    """A `Router` with an index of its own, which replicas can keep up to date."""

    def __init__(self, policy: str, block_size: int) -> None:
        self._prefixes = PrefixIndex(_MOST_BLOCKS)
        self._size = block_size
        draw = random.Random()  # noqa: S311 - spreads load
        super().__init__(policy, self._prefixes, block_size=block_size, draw=draw)

    def cached_blocks(self, replica: int) -> int:
        """How many blocks the replica is believed to have in its cache."""
        return self._prefixes.held(replica)

    async def follow(self, replica: int, endpoint: str, replay_endpoint: str | None) -> None:
        """Enter what a replica publishes of its cache, until cancelled; `check_kv_events` has passed."""
        from nanoserve.adapters.zmq_events.subscriber import KVEventSubscriber  # noqa: PLC0415 - an extra

        blocks = ReportedBlocks(replica, self._prefixes, self._size)

        def apply(events: Iterable[KVEvent]) -> None:
            for each in events:
                blocks.apply(each)

        await KVEventSubscriber(endpoint, replay_endpoint, apply).run()
