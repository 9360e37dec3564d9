"""Which replicas are believed to have which blocks, so that a request can go where its prefix is.

It is fed by guesses (what was sent to a replica is in its cache) or by what replicas report. Each replica has as many blocks
here as its cache holds, the least recently used ones go first, and of one prompt the tail goes before the head. So a replica that has a block
of a prompt has those before it, too, and `matches` needs not look at all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from nanoserve.domain.kv.names import fast_hash
from nanoserve.ports.checks import check_integer
from nanoserve.ports.kv import BlockHash

_NONE: Final[frozenset[int]] = frozenset()


def block_names(token_ids: tuple[int, ...], block_size: int, parent: BlockHash = 0) -> list[BlockHash]:
    """The chained hashes of whole blocks, which follow the block `parent`; 0 is the beginning of a text."""
    names: list[BlockHash] = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = fast_hash(parent, token_ids[start : start + block_size])
        names.append(parent)
    return names


class PrefixIndex:
    """Blocks by their chained hash; `blocks_per_replica` bounds what is kept of each replica."""

    def __init__(self, blocks_per_replica: int) -> None:
        check_integer("blocks_per_replica", blocks_per_replica, low=1)
        self._most = blocks_per_replica
        self._holders: dict[BlockHash, set[int]] = {}
        self._kept: dict[int, OrderedDict[BlockHash, None]] = {}

    def __len__(self) -> int:
        """How many (block, replica) pairs are kept."""
        return sum(map(len, self._kept.values()))

    def held(self, replica: int) -> int:
        """How many blocks the replica is believed to have."""
        return len(self._kept.get(replica, ()))

    def matches(self, hashes: Sequence[BlockHash]) -> dict[int, int]:
        """By replica, how many of a prompt's leading blocks it has; replicas that have none are left out."""
        found: dict[int, int] = {}
        if hashes:
            self._search(hashes, 1, len(hashes), self._holders.get(hashes[0], _NONE), found)
        return found

    def add(self, replica: int, hashes: Sequence[BlockHash]) -> None:
        """The replica has, or is about to have, the leading blocks of a prompt; they are its newest."""
        kept = self._kept.setdefault(replica, OrderedDict())
        for each in reversed(hashes[: self._most]):
            if each in kept:
                kept.move_to_end(each)
            else:
                kept[each] = None
                self._holders.setdefault(each, set()).add(replica)
        while len(kept) > self._most:
            self._drop(replica, kept.popitem(last=False)[0])

    def remove(self, replica: int, hashes: Iterable[BlockHash]) -> None:
        """The replica has evicted these blocks; those that it was not believed to have are ignored."""
        kept = self._kept.get(replica)
        for each in hashes:
            if kept is not None and each in kept:
                del kept[each]
                self._drop(replica, each)

    def forget(self, replica: int) -> None:
        """The replica has nothing any more: it was restarted."""
        for each in self._kept.pop(replica, ()):
            self._drop(replica, each)

    def _drop(self, replica: int, content: BlockHash) -> None:
        holders = self._holders[content]
        holders.remove(replica)
        if not holders:
            del self._holders[content]

    def _search(
        self,
        hashes: Sequence[BlockHash],
        low: int,
        high: int,
        replicas: AbstractSet[int],
        found: dict[int, int],
    ) -> None:
        """All `replicas` have `low` blocks and none has more than `high`; bisect between them."""
        if low == high or not replicas:
            found.update(dict.fromkeys(replicas, low))
            return
        middle = (low + high + 1) // 2
        further = replicas & self._holders.get(hashes[middle - 1], _NONE)
        self._search(hashes, middle, high, further, found)
        self._search(hashes, low, middle - 1, replicas - further, found)
