"""The states of recurrent cache groups: each row's live state, and the kept copies of it.

A running row holds one live state in every recurrent group, and its newest snapshot. Every step overwrites the
live state, so it cannot be shared: a snapshot is a copy of it, and a sequence that continues from a snapshot gets a copy, too.
Both are `BlockCopy`s of a plan, done before its step computes: the state *after* step s is what the row holds *before* its
next step computes, so one rule at one moment serves to restore and to keep. A row that ends or is preempted in between
has no snapshot. A state at length 0 is empty: nothing is copied for it, and nothing cleared.

Snapshots are taken only if a slot is free; otherwise more is computed again later.

Prompts of one beginning that arrive at once need a snapshot at its end. So the first of them keeps one there (`keep_for`), and
the next one waits at the head of the queue until it is there (`is_expected`), though nobody waits for a deferred sequence but others like it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from nanoserve.domain.kv.allocator import BlockAllocator
from nanoserve.domain.kv.event_log import EventLog
from nanoserve.domain.sequence import Phase, Sequence
from nanoserve.ports.kv import BlockHash
from nanoserve.ports.step import SINK_BLOCK, BlockCopy
from nanoserve.ports.trace import KVChange, StateCopied, StateHeld


@attrs.frozen
class Snapshots:
    """The *reuse points* of a sequence, lengths at which a copy of its state is kept, all at the end of a block.

    In a prompt they are the last one that leaves a token to compute, every `prompt_interval` tokens, and the junction
    where another group's prefix reached further than any state did, at which the next prompt that branches off there
    goes on (the idea of Marconi, Pan et al. 2024). While decoding there is one every `decode_interval` tokens.
    """

    block_size: int
    prompt_interval: int
    decode_interval: int

    def next_point(self, start: int, num_tokens: int, junction: int) -> int | None:
        """The first reuse point behind `start` in a prompt of `num_tokens`."""
        last = (num_tokens - 1) // self.block_size * self.block_size
        regular = (start // self.prompt_interval + 1) * self.prompt_interval
        return min((each for each in (last, junction, regular) if start < each <= last), default=None)

    def is_point(self, length: int, num_tokens: int, junction: int) -> bool:
        """True if a prompt of `num_tokens` has a reuse point at this length."""
        return length > 0 and self.next_point(length - 1, num_tokens, junction) == length

    def is_due(self, length: int) -> bool:
        """True if a decoding sequence has a reuse point at this length."""
        return length % self.decode_interval == 0


@attrs.frozen
class PlannedCopy:
    """A copy in a step that is not committed; it holds its source, and a snapshot its target, until it is.

    The copies of a plan are done all at once, in a kernel or on the way to another tier: a source that is given out
    again before that could be overwritten before it is read.

    `length`: of how many tokens the target will be the state; None if the target is the sequence's live state.
    """

    sequence: Sequence
    copy: BlockCopy
    length: int | None = None


class States:
    """The recurrent groups of a KV cache: by number, with their reuse points and the pool of their slots.

    `names`: the hashes of a sequence's leading blocks. `note` is called with every change.
    """

    def __init__(
        self,
        groups: list[tuple[int, Snapshots, BlockAllocator]],
        block_size: int,
        names: Callable[[Sequence, int], list[BlockHash]],
        note: Callable[[KVChange], None],
    ) -> None:
        self._groups = groups
        self._pools = {group: pool for group, _, pool in groups}
        self._block_size, self._hashes = block_size, names
        self._note = note
        self.events: EventLog | None = None

    def of(self, sequence: Sequence) -> tuple[tuple[int, int, int], ...]:
        """The number of each recurrent group, its live state and its newest snapshot (0: none)."""
        tables, kept = sequence.block_tables, sequence.snapshots
        groups = [group for group, _, _ in self._groups] if tables else []
        return tuple((group, tables[group][0], kept.get(group, SINK_BLOCK)) for group in groups)

    def tables_beside(self, sequence: Sequence) -> tuple[tuple[int, ...], ...]:
        """Its tables of blocks for the step log, which reports states separately; those of recurrent groups are empty."""
        tables = enumerate(sequence.block_tables)
        return tuple(() if group in self._pools else tuple(table) for group, table in tables)

    def note_lost(self, sequence: Sequence, shared: int, lengths: list[tuple[str, set[int]]]) -> None:
        """Note tokens beyond `shared` blocks that all groups but those of one kind could reuse, by the name of that kind.

        Where the others are states, note the junction up to which all else could be reused. `lengths` are, for each group, the name
        of its kind and the lengths in blocks that it could reuse.
        """
        for name in dict.fromkeys(kind for kind, _ in lengths):
            reached = max(set.intersection(*(reusable for kind, reusable in lengths if kind != name)))
            if reached > shared:
                sequence.lost_tokens[name] = (reached - shared) * self._block_size
                if name in {lengths[group][0] for group in self._pools}:
                    sequence.junction = reached * self._block_size

    def cut(self, sequence: Sequence, start: int, end: int) -> int:
        """Where a chunk of a prompt from `start` on ends: at `end`, or at a reuse point before it that has no snapshot.

        A state that was stepped over is gone, so the chunk must end where it is to be kept.
        """
        if sequence.hash_root is None:
            return end
        for _, points, pool in self._groups:
            at, num_tokens = start, len(sequence.token_ids)
            while (point := points.next_point(at, num_tokens, sequence.junction)) is not None and point < end:
                if pool.find(self._names(sequence, point)[-1]) is None:
                    end = point
                at = point
        return end

    def take(self, sequence: Sequence, length: int, *, decoding: bool) -> list[PlannedCopy]:
        """Copies of the states after `length` tokens, if that is a reuse point and there is room for them."""
        if sequence.hash_root is None:
            return []
        copies = []
        for group, points, pool in self._groups:
            if decoding:
                wanted = points.is_due(length)
            else:
                wanted = points.is_point(length, len(sequence.token_ids), sequence.junction)
                wanted = wanted and pool.find(self._names(sequence, length)[-1]) is None
            if wanted and pool.num_free:
                (live,), (target,) = sequence.block_tables[group], pool.allocate(1)
                pool.retain(live)
                copies.append(PlannedCopy(sequence, BlockCopy(group, live, target), length))
        self._note_copies(copies)
        return copies

    def keep_for(self, giver: Sequence, taker: Sequence | None, reused: int) -> bool:
        """Let `giver`, which prefills, keep its states where `taker` differs; False if it is past that point, or that is not beyond `reused` tokens."""
        common = self._common(giver, taker) if taker and self._groups else 0
        if is_ahead := common > reused and common >= giver.num_scheduled_tokens:
            giver.junction = common
        return is_ahead

    def is_expected(
        self,
        sequence: Sequence,
        reused: int,
        prefilling: Iterable[Sequence],
        steps: Iterable[Iterable[PlannedCopy]],
    ) -> bool:
        """True if those `prefilling`, or copies of `steps` in flight, will make a state to continue from that is further than `reused` tokens."""
        givers = [each for each in prefilling if sequence.is_deferred or not each.is_deferred]
        return any(self.keep_for(giver, sequence, reused) for giver in givers) or any(
            reused < (each.length or 0) <= self._common(each.sequence, sequence)
            for copies in steps
            for each in copies
            if each.sequence.phase is Phase.RUNNING
        )

    def _common(self, one: Sequence, other: Sequence) -> int:
        """Tokens of the full blocks that two sequences have in common, without the last token, which must be computed."""
        if one.hash_root is None or other.hash_root is None or other.computes_all:
            return 0
        most = (min(len(one.token_ids), len(other.token_ids)) - 1) // self._block_size
        names = zip(self._hashes(one, most), self._hashes(other, most), strict=True)
        return next((at for at, (a, b) in enumerate(names) if a != b), most) * self._block_size

    def settle(self, copies: Iterable[PlannedCopy]) -> None:
        """The step of these copies is committed: snapshots of sequences that still run get their names.

        A sequence keeps its newest snapshot; the one before it is released, and stays findable.
        """
        for each in copies:
            sequence, group, length = each.sequence, each.copy.group, each.length
            if length is None or sequence.phase is not Phase.RUNNING:
                self.cancel([each])
                continue
            pool, target = self._pools[group], each.copy.target
            pool.release(each.copy.source)
            kept = pool.register(target, self._names(sequence, length)[-1])
            if kept != target:
                pool.retain(kept)
                pool.release(target)
            elif self.events is not None:
                self.events.note_stored(sequence, [(group, length // self._block_size - 1)])
            former = sequence.snapshots.get(group)
            if former is not None:
                pool.release(former)
            sequence.snapshots[group] = kept
            self._note(StateHeld(sequence.key, group, sequence.block_tables[group][0], kept))

    def cancel(self, copies: Iterable[PlannedCopy]) -> None:
        """These copies will not be done, or their targets are not needed."""
        for each in copies:
            pool = self._pools[each.copy.group]
            pool.release(each.copy.source)
            if each.length is not None:
                pool.release(each.copy.target)

    def note_admitted(self, sequence: Sequence, copies: Iterable[PlannedCopy]) -> None:
        """A sequence has its live states; `copies` are those that start from a snapshot."""
        for group, live, kept in self.of(sequence):
            self._note(StateHeld(sequence.key, group, live, kept))
        self._note_copies(copies)

    def _note_copies(self, copies: Iterable[PlannedCopy]) -> None:
        for each in copies:
            copy = each.copy
            self._note(StateCopied(each.sequence.key, copy.group, copy.source, copy.target))

    def _names(self, sequence: Sequence, length: int) -> list[BlockHash]:
        return self._hashes(sequence, length // self._block_size)
