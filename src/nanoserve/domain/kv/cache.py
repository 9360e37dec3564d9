"""The KV cache of all cache groups together: room for sequences, shared prefixes, and changes of tables.

Theory of operation. A sequence holds *pages* of every cache group: blocks of `block_size` tokens where the layers look
back at tokens, or one live state where they are recurrent. Each group has a pool of its own (`BlockAllocator`) and a law
(`laws.py`) that says what its layers still read; everything here holds for all laws.

The groups move in step: a sequence has room in all of them or in none, and a prefix is reused only at a length at
which every group still holds what the next token would read. `match` is therefore an intersection of sets of lengths.

A page gets a *name*, the chained hash of all tokens up to its end. A block that a chunk fills is named when the chunk is planned,
so that the next sequence does not compute it again (`names.py`); one that fills while decoding, when its step is committed
(`Naming.share`). A named block is never written again, so any number of tables may hold it. A state is overwritten by every step, so
what is named is a copy of it, a snapshot, once it is there; a sequence that reuses one gets a copy, too (`states.py`).

Pages are released at once when a sequence ends or is preempted, although steps that write them may be in flight:
the device runs steps in order, so the next holder of a page writes it later.

A page without references that has a name stays findable until it is evicted (`allocator.py`). Blocks may be kept beside the
device as well (`tiers.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from nanoserve.domain.kv.allocator import BlockAllocator, PrefixStatistics
from nanoserve.domain.kv.kinds import drop_behind, law_of
from nanoserve.domain.kv.laws import Law
from nanoserve.domain.kv.names import Names, Naming, fast_hash, strong_hash
from nanoserve.domain.kv.states import PlannedCopy, Snapshots, States
from nanoserve.domain.kv.tiers import Tiers
from nanoserve.domain.sequence import Sequence
from nanoserve.ports import trace
from nanoserve.ports.model_spec import CacheGroup, per_group
from nanoserve.ports.step import SINK_BLOCK, BlockCopy, TableUpdate


class KVCache:
    """One `BlockAllocator` per cache group, of `num_blocks` pages each or of as many as its entry says.

    Attributes:
        laws, kinds: of each group, the law and the name of its kind.
        journal: while it is a list, every change is appended to it; its owner empties it.
    """

    def __init__(
        self,
        groups: Collection[CacheGroup],
        *,
        num_blocks: int | tuple[int, ...],
        block_size: int,
        isolated: bool = False,
    ) -> None:
        self.block_size = block_size
        self.allocators = [BlockAllocator(count) for count in per_group(num_blocks, len(groups))]
        self.laws = [law_of(group, block_size) for group in groups]
        self.kinds = [group.kind.name for group in groups]
        self._forgets = any(law.forgets for law in self.laws)
        self.keeps_nothing = any(law.keeps_nothing for law in self.laws)
        self._paged: list[tuple[int, Law, BlockAllocator]] = []
        states: list[tuple[int, Snapshots, BlockAllocator]] = []
        for group, (law, pool) in enumerate(zip(self.laws, self.allocators, strict=True)):
            if law.snapshots is not None:
                states.append((group, law.snapshots, pool))
            elif not law.keeps_nothing:
                self._paged.append((group, law, pool))
        self.hashes = Names(block_size, strong_hash if isolated else fast_hash)
        self.statistics = PrefixStatistics()
        self.journal: list[trace.KVChange] | None = None
        pools = {group: pool for group, _, pool in self._paged}
        self.naming = Naming(pools, block_size, self.hashes, self.note)
        self.states = States(states, block_size, self.hashes, self.note)
        self.has_states = bool(states)
        self.tiers: Tiers | None = None

    def match(self, sequence: Sequence) -> int:
        """The number of leading blocks that can be reused; never all tokens, since one must be computed."""
        sequence.junction, sequence.lost_tokens = 0, {}
        if sequence.hash_root is None or sequence.computes_all:
            return 0
        count = len(sequence.token_ids) - sequence.awaits_grammar
        hashes = self.hashes(sequence, (count - 1) // self.block_size)
        pools = zip(self.laws, self.allocators, strict=True)
        lengths = [law.reusable(hashes, pool.find) for law, pool in pools]
        shared = max(set.intersection(*lengths))
        if shared < len(hashes) and len(set(self.kinds)) > 1:
            self.states.note_lost(sequence, shared, list(zip(self.kinds, lengths, strict=True)))
        return shared

    def chunk_end(self, sequence: Sequence, start: int, most: int) -> int:
        """Where a chunk of at most `most` tokens from `start` on ends; at `start` where it must be whole and is longer."""
        end = min(start + most, len(sequence.token_ids) - sequence.awaits_grammar)
        if self.keeps_nothing:
            return end if end == len(sequence.token_ids) else start
        return self.states.cut(sequence, start, end) if self.has_states else end

    def can_admit(self, sequence: Sequence, shared: int, chunk_end: int, *, spare: list[int]) -> bool:
        """True if `admit` with the same arguments finds room and leaves `spare` pages free in each group."""
        for law, pool, kept_free in zip(self.laws, self.allocators, spare, strict=True):
            reused = sequence.block_hashes[law.first_read(shared * self.block_size) : shared]
            revived = sum(pool.reference_count(pool.find(content) or SINK_BLOCK) == 0 for content in reused)
            fresh = law.fresh_pages(shared, len(sequence.token_ids), chunk_end)
            if fresh + revived + kept_free > pool.num_free:
                return False
        return True

    def admit(self, sequence: Sequence, shared: int, chunk_end: int) -> list[PlannedCopy]:
        """Give a sequence its tables: `shared` reused blocks, then fresh ones; or a live state.

        A live state that goes on from a snapshot is copied from it: such copies are returned.
        """
        tables, copies = [], []
        for group, (law, pool) in enumerate(zip(self.laws, self.allocators, strict=True)):
            first = law.first_read(shared * self.block_size)
            reused = [pool.find(content) or SINK_BLOCK for content in sequence.block_hashes[first:shared]]
            for block in reused:
                pool.retain(block)
            fresh = pool.allocate(law.fresh_pages(shared, len(sequence.token_ids), chunk_end))
            if law.snapshots is None:
                tables.append([SINK_BLOCK] * first + reused + fresh)
            else:
                tables.append(fresh)
                copies += [PlannedCopy(sequence, BlockCopy(group, source, fresh[0])) for source in reused]
        sequence.block_tables = tuple(tables)
        sequence.num_shared_blocks = shared
        if sequence.first_scheduled is None:
            self.statistics.note(len(sequence.token_ids), shared * self.block_size, sequence.lost_tokens)
        if self.journal is not None:
            self.journal.append(trace.TablesGiven(sequence.key, shared, self.states.tables_beside(sequence)))
            self.states.note_admitted(sequence, copies)
        if self.tiers is not None:
            self.tiers.keep(sequence, 0, shared)
        return copies

    def grow(self, sequence: Sequence, start: int, end: int) -> list[TableUpdate] | None:
        """Make room for computing tokens [start, end), in every group or, returning None, in none.

        Blocks that have fallen behind a sliding window are freed first.
        """
        for group, index in drop_behind(self._paged, sequence, start) if self._forgets else ():
            self.note(trace.BlockDropped(sequence.key, group, index))
        last = -(-end // self.block_size)
        tables = sequence.block_tables
        for group, _, pool in self._paged:
            if last - len(tables[group]) > pool.num_free:
                return None
        assert sequence.row is not None
        updates = []
        for group, _, pool in self._paged:
            table = tables[group]
            if last > len(table):
                fresh = pool.allocate(last - len(table))
                updates.append(TableUpdate(sequence.row, group, len(table), tuple(fresh)))
                table.extend(fresh)
                self.note(trace.TableGrown(sequence.key, group, tuple(fresh)))
        return updates

    def release(self, sequence: Sequence) -> None:
        """Release all blocks and states, the tail of a table first, so that a prefix outlives its continuation."""
        for table, pool in zip(sequence.block_tables, self.allocators, strict=True):
            for block in reversed(table):
                if block != SINK_BLOCK:
                    pool.release(block)
        for group, kept in sequence.snapshots.items():
            self.allocators[group].release(kept)
        sequence.block_tables = ()
        sequence.snapshots.clear()
        sequence.num_shared_blocks = 0
        assert sequence.row is not None
        # Another sequence may have the row in the next plan, and these are for the tables of this one.
        self.naming.exchanged.pop(sequence.row, None)
        self.note(trace.TablesReturned(sequence.key))

    def note(self, change: trace.KVChange) -> None:
        """Tell the step log of a change, if there is one."""
        if self.journal is not None:
            self.journal.append(change)
