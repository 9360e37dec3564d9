"""A replica's reports of its cache, entered in a router's index.

A replica's names for its blocks are its own business: another engine hashes otherwise, and so may another release. So a block is named
again, by its tokens and those before it, as the router names the blocks of a prompt; the replica's name is kept to know
what it means by a later event.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Final, get_args

from nanoserve.ports.kv import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex, block_names

_MOST_NAMES: Final = 2**20
"""Blocks of one replica, more than a GPU's cache holds in a few cache groups."""


class ReportedBlocks:
    """Applies the events of one replica's cache to `index`; of more than `most_names` blocks the oldest are forgotten.

    Where several cache groups or tiers are told of, a block can be found as long as it is in any of them.
    """

    def __init__(
        self, replica: int, index: PrefixIndex, block_size: int, *, most_names: int = _MOST_NAMES
    ) -> None:
        self._replica = replica
        self._index = index
        self._block_size = block_size
        self._most_names = most_names
        self._names: OrderedDict[tuple[Tier, int, BlockHash], BlockHash] = OrderedDict()
        self._places: Counter[BlockHash] = Counter()

    def apply(self, *events: KVEvent) -> None:
        """Enter events; blocks of another size, and those that follow a block which is not known, are left out."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    told = [(event.tier, event.group, each) for each in event.block_hashes]
                    self._remove([self._names.pop(each) for each in told if each in self._names])
                case AllBlocksCleared():
                    self.clear()

    def clear(self) -> None:
        """Nothing is known of the replica's cache any more."""
        self._names.clear()
        self._places.clear()
        self._index.forget(self._replica)

    def _remove(self, names: Collection[BlockHash]) -> None:
        """Each is in one place less; those that are in none are out of the index."""
        self._places.subtract(names)
        lost = {each for each in names if not self._places[each]}
        for each in lost:
            del self._places[each]
        self._index.remove(self._replica, lost)

    def _parent(self, event: BlockStored) -> BlockHash | None:
        """The index's name of the block before; 0 at the beginning of a text, None if it is not known."""
        if event.parent is None:
            return 0
        tiers = (event.tier, *get_args(Tier))
        found = [self._names.get((tier, event.group, event.parent)) for tier in tiers]
        return next((each for each in found if each is not None), None)

    def _store(self, event: BlockStored) -> None:
        if len(event.token_ids) != len(event.block_hashes) * self._block_size:
            return
        parent = self._parent(event)
        if parent is not None:
            names = block_names(event.token_ids, self._block_size, parent)
            for told, name in zip(event.block_hashes, names, strict=True):
                place = event.tier, event.group, told
                if place not in self._names:
                    self._names[place] = name
                    self._places[name] += 1
            self._index.add(self._replica, names)
        while len(self._names) > self._most_names:
            self._remove([self._names.popitem(last=False)[1]])
