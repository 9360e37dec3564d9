"""What one replica says is in its cache, entered in a router's index.

A replica's names for its blocks are its own business: another engine hashes otherwise, and so may another release. So a block is named
anew, by its tokens and those before it, as the router names the blocks of a prompt; the replica's name is kept to know
what it means by a later event.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from nanoserve.domain.routing.prefix_index import PrefixIndex, block_names
from nanoserve.ports.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent

_MOST_NAMES: Final = 2**20
"""Of blocks of one replica, more than a GPU's cache holds in a few cache groups."""


class ReportedBlocks:
    """Applies the events of one replica's cache to `index`; of more than `most_names` blocks the oldest are forgotten.

    Where several cache groups are told of, a block can be found if it was told of in any of them.
    """

    def __init__(
        self, replica: int, index: PrefixIndex, block_size: int, *, most_names: int = _MOST_NAMES
    ) -> None:
        self._replica = replica
        self._index = index
        self._block_size = block_size
        self._most_names = most_names
        self._names: OrderedDict[tuple[int, BlockHash], BlockHash] = OrderedDict()

    def apply(self, event: KVEvent) -> None:
        """Enter one event; blocks of another size, and those that follow a block which is not known, are left out."""
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                told = [(event.group, each) for each in event.block_hashes]
                known = [self._names.pop(each) for each in told if each in self._names]
                self._index.remove(self._replica, known)
            case AllBlocksCleared():
                self.clear()

    def clear(self) -> None:
        """Nothing is known of the replica's cache any more."""
        self._names.clear()
        self._index.forget(self._replica)

    def _store(self, event: BlockStored) -> None:
        if len(event.token_ids) != len(event.block_hashes) * self._block_size:
            return
        parent = 0 if event.parent is None else self._names.get((event.group, event.parent))
        if parent is not None:
            names = block_names(event.token_ids, self._block_size, parent)
            self._names.update(zip([(event.group, each) for each in event.block_hashes], names, strict=True))
            self._index.add(self._replica, names)
        while len(self._names) > self._most_names:
            self._index.remove(self._replica, [self._names.popitem(last=False)[1]])
