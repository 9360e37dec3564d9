"""The blocks of one cache group: reference counts, free blocks, and free blocks that still hold a known prefix.

A block without references that has a name stays findable until it is evicted, least recently used first. The tail of a table is
released first, so that it is evicted first: a prefix is of use without what follows it, and not the other way round. What falls
behind a sliding window is evicted before all else, unless it had been found: a prefix is reused at its end, and each long prompt
would displace the ends of many others. A snapshot whose blocks were evicted, or the reverse, is no error: `KVCache.match` ignores
it, and it ages out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

import attrs

from nanoserve.ports.kv import BlockHash


class BlockAccountingError(AssertionError):
    """A block was freed twice or taken without being free: a bug in the control plane."""


class OutOfBlocksError(Exception):
    """Fewer blocks are free than requested; none was taken."""


@attrs.define
class PrefixStatistics:
    """Counts since the start, in tokens; a sequence counts once, when first admitted.

    `lost_tokens` could have been reused, had the groups of one kind kept theirs, by the name of that kind.
    """

    queried_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: Counter[str] = attrs.field(factory=Counter)

    def note(self, queried: int, hit: int, lost: Mapping[str, int]) -> None:
        """Count a sequence."""
        self.queried_tokens += queried
        self.hit_tokens += hit
        self.lost_tokens.update(lost)


class BlockAllocator:
    """Blocks 1 to `num_blocks`, each free or referenced (block 0 is the sink and never given out).

    A freed block whose content has a hash stays findable until it is evicted: first the blocks that were released as `first_out`,
    then the least recently used. `on_lost`, if set, is called with each hash that cannot be found any more.

    A name may be given ahead of the step that writes the content: `promised` are such blocks, each with its step.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evicted = 0
        self.on_lost: Callable[[BlockHash], None] | None = None
        self._reference_counts = [0] * (num_blocks + 1)
        self._blank = list(range(num_blocks, 0, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self.promised: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, including those with a reusable prefix."""
        return len(self._blank) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """The free blocks that may still hold a known prefix."""
        return len(self._kept)

    @property
    def findable(self) -> tuple[int, ...]:
        """The blocks whose content is written and can be found, referenced or not, in order."""
        return tuple(sorted(self._hash_of.keys() - self.promised.keys()))

    def reference_count(self, block: int) -> int:
        """How many tables hold the block."""
        return self._reference_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, all or none (`OutOfBlocksError`); each starts with one reference."""
        if count > self.num_free:
            raise OutOfBlocksError
        blocks = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block in blocks:
            self._reference_counts[block] = 1
        return blocks

    def retain(self, block: int) -> None:
        """Add a reference to a block that is referenced or kept."""
        if self._reference_counts[block] == 0:
            if block not in self._kept:
                raise BlockAccountingError(f"block {block} holds nothing that could be shared")
            del self._kept[block]
        self._reference_counts[block] += 1

    def release(self, block: int, *, first_out: bool = False) -> None:
        """Release one reference; with the last one the block is free, and `first_out` is evicted before all others."""
        if self._reference_counts[block] <= 0:
            raise BlockAccountingError(f"block {block} is freed twice")
        self._reference_counts[block] -= 1
        if self._reference_counts[block] == 0:
            if block in self._hash_of:
                self._kept[block] = None
                if first_out:
                    self._kept.move_to_end(block, last=False)
            else:
                self._blank.append(block)

    def find(self, content: BlockHash) -> int | None:
        """The block that holds this content or will hold it after the steps planned so far, referenced or kept."""
        return self._block_of.get(content)

    def register(self, block: int, content: BlockHash, step: int | None = None) -> int:
        """Name a block's content, which is computed now or by `step`.

        Returns the block to use: another one if the content was known.
        """
        known = self._block_of.get(content)
        if known is not None and (step is not None or known not in self.promised):
            return known
        if known is not None:
            self._unname(known)  # what is written is better than what will be
        self._block_of[content] = block
        self._hash_of[block] = content
        if step is not None:
            self.promised[block] = step
        return block

    def settle(self, block: int, step: int) -> bool:
        """The step has written the block; False if the name it gave is gone."""
        if self.promised.get(block) != step:
            return False
        del self.promised[block]
        return True

    def take_back(self, block: int, step: int) -> None:
        """The step has not written the block: remove its name, if it is still there."""
        if self.promised.get(block) == step:
            self._unname(block)

    def _unname(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)], self.promised[block]
        if block in self._kept:
            del self._kept[block]
            self._blank.append(block)

    def forget(self) -> None:
        """Drop every hash, so that no future request finds a block; references stay as they are."""
        if self.on_lost is not None:
            for content, block in self._block_of.items():
                if block not in self.promised:
                    self.on_lost(content)
        self._block_of.clear()
        self._hash_of.clear()
        self.promised.clear()
        self._blank.extend(self._kept)
        self._kept.clear()

    def _evict(self) -> int:
        block, _ = self._kept.popitem(last=False)
        content = self._hash_of.pop(block)
        del self._block_of[content]
        self.num_evicted += 1
        is_written = self.promised.pop(block, None) is None
        if self.on_lost is not None and is_written:
            self.on_lost(content)
        return block

    def audit(self, held: dict[int, int]) -> None:
        """Check the counts against `held`, the references of tables by block."""
        free = self._blank + list(self._kept)
        if len(set(free)) != len(free):
            raise BlockAccountingError("a block is in the free lists twice")
        for block in range(1, self.num_blocks + 1):
            count = self._reference_counts[block]
            if count != held.get(block, 0):
                message = f"block {block} counts {count} references, tables hold {held.get(block, 0)}"
                raise BlockAccountingError(message)
        if set(free) & set(held) or len(free) + len(held) != self.num_blocks:
            raise BlockAccountingError("a block is neither free nor held, or both")
        if {block: content for content, block in self._block_of.items()} != self._hash_of:
            raise BlockAccountingError("the two prefix maps disagree")
        if not self.promised.keys() <= self._hash_of.keys():
            raise BlockAccountingError("a name is promised that no block has")
        if not set(self._kept) <= set(self._hash_of) or set(self._blank) & set(self._hash_of):
            raise BlockAccountingError("a free block is on the wrong list")
