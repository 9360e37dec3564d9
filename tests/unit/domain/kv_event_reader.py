"""A consumer of KV events, as strict as can be: it keeps an index, and believes no event that does not fit to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.kv.names import chain_root, fast_hash, strong_hash
from nanoserve.ports.kv import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier


class KVEventReader:
    """Fulfils `KVEventPublisher`. Walks what it got only when it is asked, as a thread that is late would."""

    def __init__(
        self, block_size: int, *, isolated: bool = False, roots: Iterable[tuple[str, ...]] = (("salt", ""),)
    ) -> None:
        self._block_size = block_size
        self._hash = strong_hash if isolated else fast_hash
        self._roots = [chain_root(*each, isolated=isolated) for each in roots]
        self._unread: list[Iterator[KVEvent]] = []
        self._held: dict[tuple[int, Tier], set[BlockHash]] = {}
        self.seen: list[KVEvent] = []

    def publish(self, events: Iterator[KVEvent], /) -> None:
        self._unread.append(events)

    def held(self, group: int, tier: Tier = "device") -> set[BlockHash]:
        """What can be found in a group and a tier, by all that was published so far."""
        while self._unread:
            for event in self._unread.pop(0):
                self.seen.append(event)
                self._apply(event)
        return self._held.setdefault((group, tier), set())

    def _apply(self, event: KVEvent) -> None:
        match event:
            case BlockStored():
                self._check_names(event)
                held = self._held.setdefault((event.group, event.tier), set())
                assert not held & set(event.block_hashes), "stored twice"
                held.update(event.block_hashes)
            case BlockRemoved():
                held = self._held[event.group, event.tier]
                assert held >= set(event.block_hashes), "removed what was not there"
                held -= set(event.block_hashes)
            case AllBlocksCleared():
                assert not any(self._held.values()), "cleared, and not removed before"

    def _check_names(self, event: BlockStored) -> None:
        """Whoever has the tokens can name the blocks."""
        parents, size = self._roots if event.parent is None else [event.parent], self._block_size
        for number, content in enumerate(event.block_hashes if event.token_ids else ()):
            tokens = event.token_ids[number * size : (number + 1) * size]
            assert content in [self._hash(each, tokens) for each in parents]
            parents = [content]
        assert len(event.token_ids) in {0, len(event.block_hashes) * size}


def check_reader(reader: KVEventReader, cache: KVCache) -> None:
    """The events said of every content that can be found that it is there, and of no other."""
    for group, pool in enumerate(cache.allocators):
        held = reader.held(group)
        assert {pool.find(each) for each in held} == set(pool.findable)
        assert len(held) == len(pool.findable)
    if cache.tiers is not None:
        assert reader.held(0, "host") == cache.tiers.host.findable
