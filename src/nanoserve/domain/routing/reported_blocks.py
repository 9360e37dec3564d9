"""What one replica says is in its cache, entered in a router's index.

A replica's names for its blocks are its own business: another engine hashes otherwise, and so may another release. So a block is named
anew, by its tokens and those before it, as the router names the blocks of a prompt; the replica's name is kept to know
what it means by a later event.
"""

from __future__ import annotations

from nanoserve.domain.routing.prefix_index import PrefixIndex, block_names
from nanoserve.ports.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent


class ReportedBlocks:
    """Applies the events of one replica's cache to `index`.

    Where several cache groups are told of, a block can be found if it was told of in any of them.
    """

    def __init__(self, replica: int, index: PrefixIndex, block_size: int) -> None:
        self._replica = replica
        self._index = index
        self._block_size = block_size
        self._names: dict[tuple[int, BlockHash], BlockHash] = {}

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
