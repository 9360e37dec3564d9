"""Names of blocks: a chained hash over the tokens of a block and everything before it, given before the block is written.

The chain makes equal hashes mean equal prefixes (the idea of vLLM's automatic prefix caching). The fast hash is 64 bits of
Python's own hash of tuples, which depends on no seed as long as only integers go into it; the isolating one is 256 bits of
BLAKE2b, for which no collision can be constructed. Both give the same names in every process.

The blocks that a chunk fills are named when it is planned, so that prompts of one beginning that arrive at once compute it once.
A sequence that finds one is computed in the same step or a later one: in each layer a step writes the keys of all its chunks
before any row attends, and the device runs steps in order. (Decoding rows write while they attend.)

Until its step is committed, such a name is a promise, which other tiers and events do not see. It outlives its row, because the
step still writes the block. If the step fails, the name is removed, and sequences that found the block are computed again.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Collection

import attrs

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.event_log import EventLog
from nanoserve.domain.kv.tiers import Tiers
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.request import Request
from nanoserve.ports.step import SINK_BLOCK, TableUpdate
from nanoserve.ports.trace import BlocksNamed, BlocksShared, KVChange

HashFunction = Callable[[BlockHash, tuple[int, ...]], BlockHash]


def fast_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """64 bits; collisions are unlikely but can be constructed. `parent` is an integer."""
    return hash((parent, token_ids))


def strong_hash(parent: BlockHash, token_ids: tuple[int, ...]) -> BlockHash:
    """256 bits; about five times as slow as `fast_hash`. `parent` is a digest."""
    assert isinstance(parent, bytes)
    packed = _packer(len(token_ids)).pack(*token_ids)
    return hashlib.blake2b(parent + packed, digest_size=32).digest()


def chain_root(*salt: str, isolated: bool) -> BlockHash:
    """The root of a chain, for `strong_hash` if it is `isolated`; chains with different salts never meet."""
    digest = hashlib.sha256(repr(salt).encode()).digest()
    return digest if isolated else int.from_bytes(digest[:8])


def hash_root(
    request: Request,
    *,
    prefix_caching: bool,
    isolated: bool,
    lora: bytes = b"",
    weights: str = "",
    kept: str = "auto",
    deterministic: bool = False,
) -> BlockHash | None:
    """The root of the chain of a request's block names; None if its blocks are never shared.

    `lora` is the digest of the numbers of its adapter, `weights` that of weights that were changed since the start, `kept` the
    `EngineSizes.kv_cache_dtype`, `deterministic` whether invariant steps compute it and others compute otherwise. If caching is off, the
    sequences of one request share blocks only with each other.
    """
    if prefix_caching:
        salt = ("weights", weights, lora.hex()) if weights else ("lora", lora.hex()) if lora else ("salt",)
        salt = salt if kept == "auto" else ("kept", kept, *salt)
        salt = ("deterministic", *salt) if deterministic else salt
        return chain_root(*salt, request.cache_salt, isolated=isolated)
    if request.sampling.n > 1:
        return chain_root("request", request.request_id, isolated=isolated)
    return None


@functools.cache
def _packer(count: int) -> struct.Struct:
    """The packing format of that many tokens, always those of a block: formats take longer to read than to use."""
    return struct.Struct(f"<{count}i")


@attrs.frozen
class Names:
    """Names sequences' blocks of this size by this hash."""

    block_size: int
    hash_block: HashFunction

    def __call__(self, sequence: Sequence, count: int) -> list[BlockHash]:
        """The names of its first `count` full blocks; the sequence keeps them."""
        known, size = sequence.block_hashes, self.block_size
        assert sequence.hash_root is not None
        parent = known[-1] if known else sequence.hash_root
        prompt = sequence.request.prompt_token_ids  # a tuple: what is cut from it need not be made one
        tokens = prompt if count * size <= len(prompt) else sequence.token_ids
        for index in range(len(known), count):
            parent = self.hash_block(parent, tuple(tokens[index * size : (index + 1) * size]))
            known.append(parent)
        return known[:count] if len(known) > count else known


@attrs.frozen
class _Promise:
    """The blocks that were named for a chunk of a row, each by group, index and number."""

    sequence: Sequence
    row: int
    blocks: list[tuple[int, int, int]]


class Naming:
    """Names blocks: those of chunks as promises of the steps in flight, those that fill while decoding once they are written.

    `pools` are those of the groups that have blocks, `names` the hashes of a sequence's leading blocks. `note` is called with
    what the step log must be told.

    Attributes:
        exchanged: by row, the next plan's word of blocks that `share` has exchanged for equal ones.
    """

    def __init__(
        self,
        pools: dict[int, BlockAllocator],
        block_size: int,
        names: Callable[[Sequence, int], list[BlockHash]],
        note: Callable[[KVChange], None],
    ) -> None:
        self._pools, self._block_size = pools, block_size
        self._names, self._note = names, note
        self._given: dict[int, list[_Promise]] = {}
        self.exchanged: dict[int, list[TableUpdate]] = {}
        self.events: EventLog | None = None
        self.tiers: Tiers | None = None

    def give(self, sequence: Sequence, start: int, end: int, step: int) -> None:
        """Name the blocks that `step` fills by computing tokens [start, end), where no equal block is known."""
        # Its newest token is computed again if its mask is late.
        may_change = end == len(sequence.token_ids) and sequence.request.constraint is not None
        first, full = start // self._block_size, (end - may_change) // self._block_size
        if sequence.hash_root is None or full == first:
            return
        assert sequence.row is not None
        names, tables = self._names(sequence, full), sequence.block_tables
        blocks = [
            (group, index, block)
            for index in range(first, full)
            for group, pool in self._pools.items()
            if pool.register(block := tables[group][index], names[index], step) == block
        ]
        self._given.setdefault(step, []).append(_Promise(sequence, sequence.row, blocks))

    def first_taken(self, step: int, rows: Collection[int]) -> tuple[int, ...]:
        """The first of the `rows` from whose chunk in `step` another sequence has taken a block; empty if none has."""
        for each in self._given.get(step, ()):
            for group, index, block in each.blocks if each.row in rows else ():
                pool, own = self._pools[group], _holds(each.sequence, group, index, block)
                if block in pool.promised and pool.reference_count(block) > own:
                    return (each.row,)
        return ()

    def settle(self, step: int, broken: Collection[int]) -> None:
        """A step is committed: the blocks that it named are written, except chunks of `broken` rows."""
        for each in self._given.pop(step, ()):
            if each.row in broken:
                self._take_back(each, step)
                continue
            kept = [entry for entry in each.blocks if self._pools[entry[0]].settle(entry[2], step)]
            if self.events is not None:
                self.events.note_stored(each.sequence, [(group, index) for group, index, _ in kept])
            for group, index, block in kept:
                if not _holds(each.sequence, group, index, block):
                    self._note(BlocksNamed(group, (block,)))

    def take_exchanged(self) -> list[TableUpdate]:
        """Return and clear `exchanged`."""
        exchanged, self.exchanged = self.exchanged, {}
        return [update for updates in exchanged.values() for update in updates]

    def share(self, sequence: Sequence, num_computed: int) -> None:
        """Name the full blocks among the first `num_computed` tokens, whose keys and values are now written.

        Where an equal block is known already, the table is changed to it and the duplicate freed.
        """
        full = num_computed // self._block_size
        if sequence.hash_root is None or full <= sequence.num_shared_blocks:
            return
        hashes = self._names(sequence, full)
        updates, named = [], []
        for index in range(sequence.num_shared_blocks, full):
            for group, pool in self._pools.items():
                table = sequence.block_tables[group]
                own = table[index]
                if own in {SINK_BLOCK, pool.find(hashes[index])}:
                    continue
                known = pool.register(own, hashes[index])
                if known != own:
                    pool.retain(known)
                    pool.release(own)
                    table[index] = known
                    assert sequence.row is not None
                    updates.append(TableUpdate(sequence.row, group, index, (known,)))
                else:
                    named.append((group, index))
        if self.events is not None:
            self.events.note_stored(sequence, named)
        if self.tiers is not None:
            self.tiers.keep(sequence, sequence.num_shared_blocks, full)
        sequence.num_shared_blocks = full
        swapped = tuple([(each.group, each.start, each.block_ids[0]) for each in updates])
        self._note(BlocksShared(sequence.key, full, swapped))
        if updates:
            self.exchanged.setdefault(updates[0].row, []).extend(updates)

    def take_back(self) -> None:
        """Steps in flight do not count any more."""
        for step, promises in self._given.items():
            for each in promises:
                self._take_back(each, step)
        self._given.clear()

    def _take_back(self, promise: _Promise, step: int) -> None:
        for group, _, block in promise.blocks:
            self._pools[group].take_back(block, step)


def _holds(sequence: Sequence, group: int, index: int, block: int) -> bool:
    return bool(sequence.block_tables) and sequence.block_tables[group][index] == block
