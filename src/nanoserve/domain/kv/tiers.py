"""Tiers of a KV cache beside the device: blocks in host memory, and in a directory on a disk.

Theory of operation. The name of a block is its place in no tier: the same name finds it on the device, in a slot of host memory
(`host_tier.py`) and in the directory. What the device holds is known for certain, so a block travels as follows.

*Out.* A full block of a prompt is stored as soon as it has its name, that is, when the step that wrote it is committed; and so is a
block that a sequence finds on the device, if host memory lacks it. The copy goes with the next plan. Until the runner
reports it, the block is held, so that it cannot be given away, and its slot cannot be found. A slot that has become ready is
written to the directory, and pinned meanwhile.

*In.* A sequence that is about to be admitted, and whose prefix goes on in host memory where the device's ends, is not admitted: it is
held back, in no line, where it blocks no other sequence. Fresh blocks are filled for it. When the runner reports them, they
get their names, as if a step had computed them, and the sequence is in the queue again, to find a longer prefix on the device.
So no step reads a block that is on its way, and no sequence owns one. What is in the directory comes into slots first, in the same way.

*Failure.* After a step that failed nothing is known of the copies in flight: what they would have named is forgotten, and the next
plan says that they do not count. Slots into which they may still write are not used before that plan has returned.

Only one cache group is carried, all of whose blocks are read by every later token: of a window or a state a part would be missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ordered
from operator import attrgetter, itemgetter

import attrs

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.event_log import EventLog
from nanoserve.domain.kv.host_tier import HostTier, SlotAccountingError
from nanoserve.domain.kv.laws import Law
from nanoserve.domain.sequence import Sequence
from nanoserve.ports.engine_facts import TierCounts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv import BlockDirectory, BlockHash, Tier
from nanoserve.ports.step import SlotCopy, StepPlan
from nanoserve.ports.trace import BlocksFetched, BlocksLanded, KVChange

MOST_FETCHES = 3
"""How often a sequence waits for other tiers before it is admitted without more of them: loaded blocks may be evicted again."""


@attrs.frozen
class _Copied:
    """`index`: which block of the sequence it is; the sequence is one that asked for it, and may have ended."""

    name: BlockHash
    copy: SlotCopy
    sequence: Sequence
    index: int
    is_load: bool = False


@attrs.frozen
class _Wait:
    """A sequence's wait for loads, and the blocks of its prefix that are held so that they are still there afterwards."""

    names: set[BlockHash]
    held: list[int]


def check_carried(laws: Ordered[Law], kinds: Iterable[str]) -> None:
    """Raise `BadValueError` for a model whose cache groups, of these laws and kinds, have no blocks that every later token reads."""
    if len(laws) == 1 and type(laws[0]) is Law:
        return
    keeps = f"keeps other things than every token's keys and values ({', '.join(kinds)})"
    raise BadValueError("kv_offload_memory", f"this model {keeps}, and cannot be offloaded")


class Tiers:
    """Host memory and perhaps a directory behind the one pool of a KV cache.

    Attributes:
        min_tokens: a shorter part is computed again, which is faster than waiting for it.
        events: is told what can be found on the device and in host memory.
    """

    def __init__(
        self,
        pool: BlockAllocator,
        num_slots: int,
        block_size: int,
        *,
        min_tokens: int,
        directory: BlockDirectory | None = None,
        note: Callable[[KVChange], None],
    ) -> None:
        self.host = HostTier(num_slots)
        self.min_tokens = min_tokens
        self.events: EventLog | None = None
        self._note = note
        self._pool = pool
        self._block_size = block_size
        self._directory = directory
        self._unsent: list[_Copied] = []
        self._sent: dict[int, list[_Copied]] = {}
        self._landing: dict[BlockHash, int] = {}
        self._reading: dict[BlockHash, int] = {}
        self._reads: dict[int, tuple[Sequence, int]] = {}
        self._writes: Counter[int] = Counter()
        self._waiting: dict[Sequence, _Wait] = {}
        self._arrived: list[Sequence] = []
        self._doubtful: list[int] = []
        self._doubtful_until: int | None = None
        self._starts_anew = False
        self._num_stored = self._num_loaded = self._num_skipped = 0

    @property
    def is_busy(self) -> bool:
        """True if copies are planned or running, so that a step is needed even if it computes nothing."""
        return bool(self._unsent or self._sent)

    def calls_for_step(self, *, is_idle: bool) -> bool:
        """True if a step without computation is useful: to start copies, or to learn that they are done."""
        return bool(self._unsent) or (is_idle and bool(self._sent))

    def keep(self, sequence: Sequence, first: int, last: int) -> None:
        """Carry out the blocks of a prompt from `first` to before `last`, which can be found on the device and are written, where they are missing.

        The tail first, so that it is forgotten first.
        """
        last = min(last, sequence.num_prompt_tokens // self._block_size)
        table = sequence.block_tables[0]
        for index in range(last - 1, first - 1, -1):
            name = sequence.block_hashes[index]
            if self.host.knows(name):
                self.host.touch(name)
                continue
            slot = None if table[index] in self._pool.promised else self.host.reserve(name)
            if slot is None:
                self._num_skipped += 1
                continue
            self._pool.retain(table[index])
            self._unsent.append(_Copied(name, SlotCopy(table[index], slot), sequence, index))

    def hands_over(self, sequence: Sequence) -> bool:
        """True while a block of its prompt is on its way to the directory."""
        if not (self._writes or self.is_busy):
            return False
        names = set(sequence.block_hashes[: sequence.num_prompt_tokens // self._block_size])
        copies = (each for plan in (self._unsent, *self._sent.values()) for each in plan)
        if any(each.name in names and not each.is_load for each in copies):
            return True
        return any(self.host.find(name) in self._writes for name in names)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for blocks."""
        return len(self._waiting)

    def worth_fetching(self, sequence: Sequence, shared: int) -> list[BlockHash]:
        """The names of what follows the first `shared` blocks and is in the tiers; none if it is too little."""
        if sequence.hash_root is None or sequence.computes_all:
            return []
        most = (len(sequence.token_ids) - 1) // self._block_size
        run = self._run(sequence.block_hashes[shared:most])
        is_enough = len(run) * self._block_size >= self.min_tokens and sequence.fetches < MOST_FETCHES
        return run if is_enough else []

    def fetch(self, sequence: Sequence, shared: int, run: list[BlockHash]) -> bool:
        """Begin to bring in what is worth fetching behind the first `shared` blocks, which are on the device; whether the sequence must wait for it.

        The pool has room for all blocks of the sequence.
        """
        sequence.fetches += 1
        found = map(self._pool.find, sequence.block_hashes[:shared])
        wait = _Wait(set(), [block for block in found if block is not None])
        for block in wait.held:
            self._pool.retain(block)
        wait.names.update(self._read(sequence, shared, run) or self._load(sequence, shared, run))
        self._waiting[sequence] = wait
        if not wait.names:
            self.drop(sequence)
        return bool(wait.names)

    def _run(self, names: Ordered[BlockHash]) -> list[BlockHash]:
        """The leading blocks that are in some tier, or on their way to the device."""
        run = []
        for name in names:
            is_here = self.host.find(name) is not None or name in self._landing or name in self._reading
            if not is_here and (self._directory is None or not self._directory.holds(name)):
                break
            run.append(name)
        return run

    def _read(self, sequence: Sequence, shared: int, run: Iterable[BlockHash]) -> set[BlockHash]:
        """Begin to read blocks that only the directory has into slots; returns those that are being read."""
        if self._directory is None:
            return set()
        missing = [
            (index, name)
            for index, name in enumerate(run, start=shared)
            if self.host.find(name) is None and self._pool.find(name) is None and name not in self._landing
        ]
        ready = [slot for name in run if missing and (slot := self.host.find(name)) is not None]
        for slot in ready:  # the run does not displace itself
            self.host.pin(slot)
        under_way = set()
        for index, name in missing:
            if name not in self._reading:
                slot = self.host.reserve(name)
                if slot is None:
                    break
                self._reading[name] = slot
                self._reads[slot] = sequence, index
                self._directory.read(name, slot)
            under_way.add(name)
        for slot in reversed(ready):
            self.host.unpin(slot)
        return under_way

    def _load(self, sequence: Sequence, shared: int, run: Iterable[BlockHash]) -> set[BlockHash]:
        """Fill free blocks from slots that are ready; returns what is on its way to the device."""
        names, wanted = set(), []
        for index, name in enumerate(run, start=shared):
            if name not in self._landing and self._pool.find(name) is None:
                slot = self.host.find(name)
                if slot is None:
                    break
                wanted.append((index, name, slot))
            names.add(name)
        blocks = self._pool.allocate(len(wanted))
        self._note(BlocksFetched(tuple(blocks)))
        for (index, name, slot), block in zip(wanted, blocks, strict=True):
            self.host.pin(slot)
            self._landing[name] = block
            self._unsent.append(_Copied(name, SlotCopy(block, slot), sequence, index, is_load=True))
        return names & self._landing.keys()

    def go_along(self, plan: StepPlan) -> StepPlan:
        """The plan with the waiting copies, and with `starts_anew` if no step before it counts."""
        if not self._unsent and not self._starts_anew:
            return plan
        copies, self._unsent = self._unsent, []
        if copies:
            self._sent[plan.step] = copies
        starts_anew, self._starts_anew = self._starts_anew, False
        if starts_anew:
            self._doubtful_until = plan.step
        return attrs.evolve(
            plan,
            stores=tuple([each.copy for each in copies if not each.is_load]),
            loads=tuple([each.copy for each in copies if each.is_load]),
            starts_anew=starts_anew,
        )

    def settle(self, step: int, copied: Iterable[int]) -> None:
        """A step is done, and reports that all copies of some steps are done."""
        if self._doubtful_until is not None and step >= self._doubtful_until:
            for slot in self._doubtful:
                self.host.complete(slot, is_good=False)
            self._doubtful.clear()
            self._doubtful_until = None
        for each in copied:
            if copies := self._sent.pop(each, None):
                self._land([each for each in copies if each.is_load])
                self._note_stored([each for each in copies if not each.is_load])

    def _note_stored(self, stores: Ordered[_Copied]) -> None:
        self._num_stored += len(stores)
        for each in stores:
            self._pool.release(each.copy.block)
        kept = [each for each in stores if self.host.complete(each.copy.slot, is_good=True)]
        if directory := self._directory:
            lacking = [each for each in kept if not directory.holds(each.name)]
            # Of tails: without its beginning no prompt is found.
            surplus = max(0, len(lacking) - directory.room)
            for each in (*lacking[surplus:], *lacking[:surplus]):
                if directory.write(each.name, each.copy.slot):
                    self.host.pin(each.copy.slot)
                    self._writes[each.copy.slot] += 1
        self._announce([(each.sequence, each.index) for each in reversed(kept)], "host")

    def _land(self, loads: Ordered[_Copied]) -> None:
        """Blocks have their content: name them; they are free until the waiting sequences take them."""
        landed: set[BlockHash] = set()
        named: list[tuple[Sequence, int, int]] = []
        for each in reversed(loads):
            block = each.copy.block
            self._num_loaded += 1
            self.host.unpin(each.copy.slot)
            if self._landing.get(each.name) == block:
                del self._landing[each.name]
                landed.add(each.name)
                if self._pool.register(block, each.name) == block:
                    named.append((each.sequence, each.index, block))
            self._pool.release(block)
        self._note(BlocksLanded(tuple(block for _, _, block in named)))
        self._announce([each[:2] for each in reversed(named)], "device")
        self._let_go(landed)

    def poll(self) -> list[Sequence]:
        """The sequences that need not wait any more; they may have ended."""
        if self._directory is not None and (self._reads or self._writes):
            self._note_directory_work(self._directory)
        arrived, self._arrived = self._arrived, []
        return arrived

    def _note_directory_work(self, directory: BlockDirectory) -> None:
        came, kept = set(), []
        for work in directory.finished():
            if not work.is_read:
                self._writes -= Counter((work.slot,))
                self.host.unpin(work.slot)
                continue
            asked = self._reads.pop(work.slot)
            if self.host.complete(work.slot, is_good=work.is_good):
                kept.append(asked)
            if self._reading.get(work.name) == work.slot:
                del self._reading[work.name]
                came.add(work.name)
        self._announce(sorted(kept, key=itemgetter(1)), "host")
        self._let_go(came)

    def _announce(self, blocks: Iterable[tuple[Sequence, int]], tier: Tier) -> None:
        if self.events is not None:
            for sequence, index in blocks:
                self.events.note_stored(sequence, [(0, index)], tier)

    def rest(self) -> None:
        """Wait a moment for the directory, if a sequence waits for it."""
        if (self._reads or self._writes) and self._directory is not None:
            self._directory.rest()

    def _let_go(self, names: set[BlockHash]) -> None:
        for sequence, wait in list(self._waiting.items()) if names else ():
            wait.names.difference_update(names)
            if not wait.names:
                self.drop(sequence)
                self._arrived.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """The sequence waits no more; it does not have to be waiting."""
        wait = self._waiting.pop(sequence, None)
        if wait is not None:
            for block in reversed(wait.held):
                self._pool.release(block)

    def cancel(self) -> None:
        """Planned and running copies do not count any more; nothing waits for them."""
        for copies in (self._unsent, *self._sent.values()):
            for each in sorted(copies, key=attrgetter("is_load")):
                self._pool.release(each.copy.block)
                if each.is_load:
                    self.host.unpin(each.copy.slot)
                else:
                    self.host.abandon(each.copy.slot)
                    self._doubtful.append(each.copy.slot)
        self._unsent = []
        self._sent.clear()
        landing = set(self._landing)
        self._landing.clear()
        self._starts_anew, self._doubtful_until = True, None
        self._let_go(landing)

    def forget(self, *, with_directory: bool) -> None:
        """Nothing can be found in host memory any more, nor in the directory; what is on its way will not be found either."""
        self.host.forget()
        if with_directory and self._directory is not None:
            self._directory.forget()
        names = {*self._landing, *self._reading}
        self._landing.clear()
        self._reading.clear()
        self._let_go(names)

    def holders(self) -> Iterator[int]:
        """The held blocks, once for each reference."""
        for copies in (self._unsent, *self._sent.values()):
            yield from (each.copy.block for each in copies)
        for wait in self._waiting.values():
            yield from wait.held

    def counts(self) -> dict[str, TierCounts]:
        """The counts of each tier, by its name."""
        host = TierCounts(
            capacity=self.host.num_slots,
            held=self.host.num_held,
            stored=self._num_stored,
            loaded=self._num_loaded,
            evicted=self.host.num_evicted,
            refused=self._num_skipped,
        )
        return {"host": host} | ({} if self._directory is None else {"disk": self._directory.counts()})

    def audit(self) -> None:
        """Check host memory, and that every waiting sequence will be admitted."""
        copies = [each for plan in (self._unsent, *self._sent.values()) for each in plan]
        loads = [each for each in copies if each.is_load]
        stores = [each.copy.slot for each in copies if not each.is_load]
        reading = Counter([each.copy.slot for each in loads]) + self._writes
        self.host.audit(Counter([*stores, *self._reads, *self._doubtful]), reading)
        landing = {each.name: each.copy.block for each in loads}
        if any(landing.get(name) != block for name, block in self._landing.items()):
            raise SlotAccountingError("a block is awaited that is not on its way")
        on_their_way = self._landing.keys() | self._reading.keys()
        if any(not wait.names or not wait.names <= on_their_way for wait in self._waiting.values()):
            raise SlotAccountingError("a sequence waits for what will not come")
