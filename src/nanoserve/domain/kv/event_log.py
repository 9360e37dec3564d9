"""Notes blocks that become findable and blocks that are lost, for the events of `ports/kv.py`.

A decode step may fill a block of many rows, so a note is four references. The events are made of them later, and may be made
in another thread: what a sequence says of a block that has a name never changes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.host_tier import HostTier
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.kv import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent, Tier

_Note = tuple[int | None, Tier, Sequence | None, Any]
"""A note about a group and a tier: a sequence, which of its blocks can be found, and its names then, or no sequence and the hash that is lost. No group: all is lost."""


class EventLog:
    """The changes since they were taken last, in order; `pools` are those of all cache groups, `host` is behind the only one."""

    def __init__(
        self, block_size: int, pools: Iterable[BlockAllocator] = (), host: HostTier | None = None
    ) -> None:
        self._block_size = block_size
        self._notes: list[_Note] = []
        for group, pool in enumerate(pools):
            pool.on_lost = functools.partial(self._note_removed, group, "device")
        if host is not None:
            host.on_lost = functools.partial(self._note_removed, 0, "host")

    def note_stored(
        self, sequence: Sequence, blocks: Iterable[tuple[int, int]], tier: Tier = "device"
    ) -> None:
        """Blocks of a sequence, or the states at their ends, can be found from now on; they are given by group and index."""
        for group, index in sorted(blocks):
            self._notes.append((group, tier, sequence, (index, sequence.block_hashes)))

    def _note_removed(self, group: int, tier: Tier, content: BlockHash) -> None:
        self._notes.append((group, tier, None, content))

    def note_cleared(self) -> None:
        """No block can be found any more; each removal was noted before."""
        self._notes.append((None, "device", None, 0))

    def take(self) -> Iterator[KVEvent] | None:
        """The events since the last call, to be read once, at any time; None if nothing has changed."""
        if not self._notes:
            return None
        notes, self._notes = self._notes, []
        return _events(notes, self._block_size)


def _events(notes: Iterable[_Note], block_size: int) -> Iterator[KVEvent]:
    """Neighbours make one event."""
    for (group, tier, sequence), run in groupby(notes, key=itemgetter(0, 1, 2)):
        values = [value for *_, value in run]
        if group is None:
            yield AllBlocksCleared()
        elif sequence is None:
            yield BlockRemoved(group, tuple(values), tier)
        else:
            is_plain, names = not (sequence.request.cache_salt or sequence.lora), values[0][1]
            for first, last in _stretches([index for index, _ in values]):  # all under the same weights
                tokens = sequence.token_ids[first * block_size : (last + 1) * block_size]
                yield BlockStored(
                    group=group,
                    parent=names[first - 1] if first else None,
                    block_hashes=tuple(names[first : last + 1]),
                    token_ids=tuple(tokens) if is_plain else (),
                    tier=tier,
                )


def _stretches(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and last of each stretch of consecutive numbers."""
    for _, stretch in groupby(enumerate(indices), key=lambda each: each[1] - each[0]):
        found = [index for _, index in stretch]
        yield found[0], found[-1]
