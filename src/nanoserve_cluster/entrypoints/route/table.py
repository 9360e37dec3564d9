"""Puts a router together: the policies and the index that simulations run, fed by what replicas publish."""

from __future__ import annotations

import random
from typing import Final

from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex
from nanoserve_cluster.domain.routing.reported_blocks import ReportedBlocks
from nanoserve_cluster.domain.routing.router import Router

_MOST_BLOCKS: Final = 2**18
"""Blocks that are remembered of one replica: 4 million tokens in blocks of 16, more than a GPU's cache holds."""


class RoutingTable(Router):
    """A `Router` with an index of its own, which replicas can keep up to date."""

    def __init__(self, policy: str, block_size: int) -> None:
        draw = random.Random()  # noqa: S311 - spreads load
        super().__init__(policy, PrefixIndex(_MOST_BLOCKS), block_size=block_size, draw=draw)

    def cached_blocks(self, replica: int) -> int:
        """How many blocks the replica is believed to have in its cache."""
        return self.index.held(replica)

    async def follow(self, replica: int, endpoint: str, replay_endpoint: str | None) -> None:
        """Enter what a replica publishes of its cache, until cancelled; `check_kv_events` has passed."""
        from nanoserve.adapters.zmq_events.subscriber import KVEventSubscriber  # noqa: PLC0415 - an extra

        blocks = ReportedBlocks(replica, self.index, self.block_size)
        await KVEventSubscriber(endpoint, replay_endpoint, lambda events: blocks.apply(*events)).run()
