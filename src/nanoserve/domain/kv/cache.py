"""The KV cache of all cache groups together: room for sequences, shared prefixes, and what changed in their tables.

The groups move in step: a sequence has room in all of them or in none, and a prefix is reused only where every group
still holds the blocks that its next token would read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from nanoserve.domain.kv.allocator import BlockAllocator, PrefixStatistics
from nanoserve.domain.kv.visibility import Visibility
from nanoserve.domain.prefix_hash import BlockHash, fast_hash, sha256_hash
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.step import SINK_BLOCK, TableUpdate
from nanoserve.ports.trace import (
    BlockDropped,
    BlocksShared,
    KVChange,
    PrefixesForgotten,
    TableGrown,
    TablesGiven,
    TablesReturned,
)


class KVCache:
    """One `BlockAllocator` of `num_blocks` blocks per cache group, each block `block_size` tokens.

    Whoever sets `journal` to a list finds every change there, in order, and empties it.
    """

    def __init__(
        self, groups: Seq[CacheGroup], *, num_blocks: int, block_size: int, isolated: bool = False
    ) -> None:
        self.block_size = block_size
        self.allocators = [BlockAllocator(num_blocks) for _ in groups]
        self._laws = [Visibility.of(group, block_size) for group in groups]
        self._windowed = any(law.window is not None for law in self._laws)
        self._hash = sha256_hash if isolated else fast_hash
        self._statistics = PrefixStatistics()
        self.journal: list[KVChange] | None = None

    @property
    def statistics(self) -> PrefixStatistics:
        """Prefix-cache counts since the start."""
        self._statistics.evicted_blocks = sum(allocator.num_evicted for allocator in self.allocators)
        return self._statistics

    def start_counting(self) -> None:
        """Start the prefix-cache counts anew; evictions count on."""
        self._statistics = PrefixStatistics()

    @property
    def usage(self) -> float:
        """The referenced fraction of the fullest group, 0 to 1."""
        return max(1 - allocator.num_free / allocator.num_blocks for allocator in self.allocators)

    def fits_alone(self, num_tokens: int, max_chunk: int) -> bool:
        """Whether a sequence of `num_tokens` computed tokens fits into an empty pool, chunk by chunk."""
        peaks = [law.peak_blocks(num_tokens, max_chunk) for law in self._laws]
        return all(peak <= pool.num_blocks for peak, pool in zip(peaks, self.allocators, strict=True))

    def match(self, sequence: Sequence) -> int:
        """How many leading blocks can be reused; never all of the tokens, since one must be computed."""
        if sequence.hash_root is None or sequence.sampling.prompt_logprobs is not None:
            return 0
        hashes = self._hashes(sequence, (len(sequence.token_ids) - 1) // self.block_size)
        pools = zip(self._laws, self.allocators, strict=True)
        return max(set.intersection(*(self._reusable_lengths(law, pool, hashes) for law, pool in pools)))

    def _reusable_lengths(self, law: Visibility, pool: BlockAllocator, hashes: list[BlockHash]) -> set[int]:
        lengths, run = {0}, 0
        for length, content in enumerate(hashes, start=1):
            run = run + 1 if pool.find(content) is not None else 0
            if run >= length - law.first_block(length * self.block_size):
                lengths.add(length)
            elif law.window is None:
                break
        return lengths

    def can_admit(self, sequence: Sequence, shared: int, chunk_end: int, *, spare: int) -> bool:
        """Whether `admit` with the same arguments finds room and leaves `spare` blocks free in every group."""
        for law, pool in zip(self._laws, self.allocators, strict=True):
            reused = sequence.block_hashes[law.first_block(shared * self.block_size) : shared]
            revived = sum(pool.reference_count(pool.find(content) or SINK_BLOCK) == 0 for content in reused)
            fresh = self._first_extent(law, sequence, chunk_end) - shared
            if fresh + revived + spare > pool.num_free:
                return False
        return True

    def admit(self, sequence: Sequence, shared: int, chunk_end: int) -> None:
        """Give a sequence its tables: `shared` reused blocks, then fresh ones.

        A full-attention group gets room for all tokens known so far, so that a prefill is never cut short by its
        neighbours; a windowed group gets room up to `chunk_end`, and the rest chunk by chunk.
        """
        tables = []
        for law, pool in zip(self._laws, self.allocators, strict=True):
            first = law.first_block(shared * self.block_size)
            reused = [pool.find(content) or SINK_BLOCK for content in sequence.block_hashes[first:shared]]
            for block in reused:
                pool.retain(block)
            fresh = pool.allocate(self._first_extent(law, sequence, chunk_end) - shared)
            tables.append([SINK_BLOCK] * first + reused + fresh)
        sequence.block_tables = tuple(tables)
        sequence.num_shared_blocks = shared
        if sequence.first_scheduled is None:
            self._statistics.queried_tokens += len(sequence.token_ids)
            self._statistics.hit_tokens += shared * self.block_size
        if self.journal is not None:
            self.journal.append(TablesGiven(sequence.key, shared, tuple(map(tuple, tables))))

    def _first_extent(self, law: Visibility, sequence: Sequence, chunk_end: int) -> int:
        end = len(sequence.token_ids) if law.window is None else chunk_end
        return -(-end // self.block_size)

    def grow(self, sequence: Sequence, start: int, end: int) -> list[TableUpdate] | None:
        """Make room for computing tokens [start, end), in every group or, returning None, in none.

        Blocks that have fallen behind a sliding window are freed first.
        """
        if self._windowed:
            self._drop_behind(sequence, start)
        last = -(-end // self.block_size)
        tables = sequence.block_tables
        for table, pool in zip(tables, self.allocators, strict=True):
            if last - len(table) > pool.num_free:
                return None
        assert sequence.row is not None
        updates = []
        for group, (table, pool) in enumerate(zip(tables, self.allocators, strict=True)):
            if last > len(table):
                fresh = pool.allocate(last - len(table))
                updates.append(TableUpdate(sequence.row, group, len(table), tuple(fresh)))
                table.extend(fresh)
                if self.journal is not None:
                    self.journal.append(TableGrown(sequence.key, group, tuple(fresh)))
        return updates

    def _drop_behind(self, sequence: Sequence, start: int) -> None:
        for group, (law, pool) in enumerate(zip(self._laws, self.allocators, strict=True)):
            table = sequence.block_tables[group]
            index = law.first_block(start) - 1
            while index >= 0 and table[index] != SINK_BLOCK:
                pool.release(table[index])
                table[index] = SINK_BLOCK
                if self.journal is not None:
                    self.journal.append(BlockDropped(sequence.key, group, index))
                index -= 1

    def share(self, sequence: Sequence, num_computed: int) -> list[TableUpdate]:
        """Register the full blocks among the first `num_computed` tokens, whose keys and values are now written.

        Where an equal block is known already, the table is changed to it and the duplicate freed.
        """
        full = num_computed // self.block_size
        if sequence.hash_root is None or full <= sequence.num_shared_blocks:
            return []
        hashes = self._hashes(sequence, full)
        updates = []
        for index in range(sequence.num_shared_blocks, full):
            for group, (table, pool) in enumerate(zip(sequence.block_tables, self.allocators, strict=True)):
                own = table[index]
                if own == SINK_BLOCK:
                    continue
                known = pool.register(own, hashes[index])
                if known != own:
                    pool.retain(known)
                    pool.release(own)
                    table[index] = known
                    assert sequence.row is not None
                    updates.append(TableUpdate(sequence.row, group, index, (known,)))
        sequence.num_shared_blocks = full
        if self.journal is not None:
            swapped = tuple((each.group, each.start, each.block_ids[0]) for each in updates)
            self.journal.append(BlocksShared(sequence.key, full, swapped))
        return updates

    def release(self, sequence: Sequence) -> None:
        """Give all blocks back, the tail first, so that a prefix outlives what follows it."""
        for table, pool in zip(sequence.block_tables, self.allocators, strict=True):
            for block in reversed(table):
                if block != SINK_BLOCK:
                    pool.release(block)
        sequence.block_tables = ()
        sequence.num_shared_blocks = 0
        if self.journal is not None:
            self.journal.append(TablesReturned(sequence.key))

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        for pool in self.allocators:
            pool.forget()
        if self.journal is not None:
            self.journal.append(PrefixesForgotten())

    def _hashes(self, sequence: Sequence, count: int) -> list[BlockHash]:
        known, size = sequence.block_hashes, self.block_size
        assert sequence.hash_root is not None
        parent = known[-1] if known else sequence.hash_root
        for index in range(len(known), count):
            parent = self._hash(parent, tuple(sequence.token_ids[index * size : (index + 1) * size]))
            known.append(parent)
        return known[:count] if len(known) > count else known
