"""The laws of layers with windows, with states, and without a cache, as differences from `laws.Law`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.laws import Find, Law
from nanoserve.domain.kv.states import Snapshots
from nanoserve.domain.sequence import Sequence as Tokens
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.model_spec import CacheGroup, Full, Latent, PoolNeed, Recurrent, Uncached, Window
from nanoserve.ports.step import SINK_BLOCK

Groups = Sequence[tuple[int, Law, BlockAllocator]]


@attrs.frozen(kw_only=True)
class WindowLaw(Law):
    """A token reads the last `window` tokens, its own included; a prefix is reused if those before its end are there."""

    window: int
    forgets = True

    def first_read(self, start: int) -> int:
        """The block of the oldest token that the token at `start` reads."""
        return max(0, start - self.window + 1) // self.block_size

    def reusable(self, hashes: Sequence[BlockHash], find: Find) -> set[int]:
        """After every run of blocks that is as long as the window."""
        lengths, run = {0}, 0
        for length, content in enumerate(hashes, start=1):
            run = run + 1 if find(content) is not None else 0
            if run >= length - self.first_read(length * self.block_size):
                lengths.add(length)
        return lengths

    def fresh_pages(self, shared: int, num_tokens: int, chunk_end: int) -> int:  # noqa: ARG002 - chunk by chunk
        """For the first chunk; a prompt never needs all its blocks at once."""
        return -(-chunk_end // self.block_size) - shared

    def peak_pages(self, num_tokens: int, max_chunk: int) -> int:
        """A window and a chunk, and one more because both begin anywhere in a block."""
        everything = -(-num_tokens // self.block_size)
        return min(everything, -(-(self.window - 1 + max_chunk) // self.block_size) + 1)

    def pool_need(self, max_model_len: int, max_chunk: int, *, alone: bool) -> PoolNeed:
        """A window for every row, half as much again for prefixes that wait to be reused, and one step's chunks."""
        if alone:
            return super().pool_need(max_model_len, max_chunk, alone=alone)
        held, every = self.peak_pages(max_model_len, 1), -(-max_model_len // self.block_size)
        return PoolNeed(
            least=self.peak_pages(max_model_len, max_chunk),
            per_row=min(held + held // 2, every),
            fixed=-(-max_chunk // self.block_size) + 1,
        )


@attrs.frozen
class RecurrentLaw(Law):
    """One state per row, overwritten by every step; it can be reused only where a snapshot of it was kept."""

    def first_read(self, start: int) -> int:
        """The block at whose end the state is that the token at `start` continues from."""
        return max(0, start // self.block_size - 1)

    def reusable(self, hashes: Sequence[BlockHash], find: Find) -> set[int]:
        """Where there is a snapshot, and the beginning, at which there is no state yet."""
        return {0} | {length for length, content in enumerate(hashes, start=1) if find(content) is not None}

    def fresh_pages(self, shared: int, num_tokens: int, chunk_end: int) -> int:  # noqa: ARG002 - always one
        """The live state; snapshots are taken where there is room for them."""
        return 1

    def peak_pages(self, num_tokens: int, max_chunk: int) -> int:  # noqa: ARG002 - always one
        """The page that it cannot do without: the live state."""
        return 1

    def pool_need(self, max_model_len: int, max_chunk: int, *, alone: bool) -> PoolNeed:  # noqa: ARG002 - never more
        """For every row the live state and its newest snapshot, and some that are on their way."""
        return PoolNeed(least=1, per_row=2, fixed=2)


@attrs.frozen
class UncachedLaw(Law):
    """Tokens read one another within a step, and leave nothing behind: no page is taken, and no prefix reused."""

    keeps_nothing = True

    def reusable(self, hashes: Sequence[BlockHash], find: Find) -> set[int]:  # noqa: ARG002 - nothing is kept
        """The beginning alone."""
        return {0}

    def fresh_pages(self, shared: int, num_tokens: int, chunk_end: int) -> int:  # noqa: ARG002 - always none
        return 0

    def peak_pages(self, num_tokens: int, max_chunk: int) -> int:  # noqa: ARG002 - always none
        return 0

    def pool_need(self, max_model_len: int, max_chunk: int, *, alone: bool) -> PoolNeed:  # noqa: ARG002 - always one
        """One page that nobody takes: a pool has one at least, and here it has no bytes."""
        return PoolNeed(least=1, per_row=0)


def law_of(group: CacheGroup, block_size: int) -> Law:
    """The law of a cache group."""
    match group.kind:
        case Full() | Latent():
            return Law(block_size)
        case Window(tokens):
            return WindowLaw(block_size, window=tokens)
        case Recurrent(prompt, decode):
            intervals = [-(-each // block_size) * block_size for each in (prompt, decode)]
            return RecurrentLaw(block_size, Snapshots(block_size, *intervals))
        case Uncached():
            return UncachedLaw(block_size)


def drop_behind(paged: Groups, sequence: Tokens, start: int) -> Iterator[tuple[int, int]]:
    """Free the blocks that nothing from `start` on reads; yields the group and the index of each."""
    for group, law, pool in paged:
        table = sequence.block_tables[group]
        index = law.first_read(start) - 1
        while index >= 0 and table[index] != SINK_BLOCK:
            # In the middle of a prompt a block of a window is hardly ever of use again; but what was found once may be.
            was_found = index * law.block_size < sequence.num_cached_tokens
            pool.release(table[index], first_out=not was_found)
            table[index] = SINK_BLOCK
            yield group, index
            index -= 1


def pool_needs(
    groups: Sequence[CacheGroup], *, block_size: int, max_model_len: int, max_num_batched_tokens: int
) -> tuple[PoolNeed, ...]:
    """The pool size of each group. Windows take little beside an unbounded group; without one they share all memory."""
    laws = [law_of(group, block_size) for group in groups]
    alone = all(law.forgets or law.snapshots is not None for law in laws)
    return tuple(law.pool_need(max_model_len, max_num_batched_tokens, alone=alone) for law in laws)
