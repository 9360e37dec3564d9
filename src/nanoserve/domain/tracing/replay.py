"""The state of an engine, rebuilt from its step log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from nanoserve.ports import trace
from nanoserve.ports.step import SINK_BLOCK


class Replay:
    """Starts at a snapshot and applies turn after turn.

    Attributes:
        sequences: the living ones by key; what they decoded since their last change is missing from their number of
            scheduled tokens, which only `snapshot` brings up to date.
        references: per cache group, how many tables hold each block; blocks that none holds are absent or 0. Of a
            recurrent group, how many sequences hold each state, live or as their newest snapshot.
        findable: per cache group, the blocks whose content can be found. One that no table holds is free, and cached.
        decoding: the keys that decode in the newest planned step; empty until a step was planned.
        committed: the newest step that was collected; 0 until there was one.
    """

    def __init__(self, start: trace.Snapshot) -> None:
        self.at = start.at
        self.step = start.step
        self.committed = 0
        self.sequences = {each.key: each for each in start.sequences}
        self.findable = [set(blocks) for blocks in start.findable]
        self.references: list[Counter[int]] = [Counter() for _ in start.findable]
        for each in start.sequences:
            for group, table in enumerate(each.tables):
                self._hold(group, table)
            for group, live, kept in each.states:
                self._hold(group, (live, kept))
        self.decoding: tuple[int, ...] = ()
        self._num_decoded: Counter[int] = Counter()
        self.preemptions = start.preemptions
        self.finished = Counter(start.finished)
        self.generated_tokens = start.generated_tokens
        self.prefix_queries, self.prefix_hits = start.prefix_queries, start.prefix_hits

    def apply(self, turn: trace.Turn) -> None:
        """Apply one turn."""
        for arrival in turn.arrived:
            self.sequences[arrival.key] = trace.TracedSequence(**attrs.asdict(arrival))
        for change in turn.kv:
            self._change_cache(change)
        for event in turn.happened:
            self._move(event)
        for ending in turn.ended:
            del self.sequences[ending.key], self._num_decoded[ending.key]
            self.finished[ending.reason] += 1
        if turn.committed is not None:
            self.committed = turn.committed
        self.at = turn.at
        self.generated_tokens += turn.num_generated
        self.prefix_queries, self.prefix_hits = turn.prefix_queries, turn.prefix_hits

    def snapshot(self) -> trace.Snapshot:
        """The state now, as `read_snapshot` would have read it."""
        return trace.Snapshot(
            at=self.at,
            step=self.step,
            sequences=tuple(self._up_to_date(key) for key in sorted(self.sequences)),
            findable=tuple(tuple(sorted(blocks)) for blocks in self.findable),
            preemptions=self.preemptions,
            finished=dict(self.finished),
            generated_tokens=self.generated_tokens,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
        )

    def _move(self, event: trace.Happening) -> None:
        match event:
            case trace.Admission(key, row, num_cached, resumed):
                first = {} if resumed else {"num_cached_tokens": num_cached}
                self._schedule(key, num_cached, phase="running", row=row, **first)
            case trace.Preemption(key):
                self._schedule(key, 0, phase="preempted", row=None)
                self.preemptions += 1
            case trace.Repetition(key, num_tokens):
                self._num_decoded[key] -= num_tokens
            case trace.PlannedStep():
                self._plan(event)

    def _plan(self, planned: trace.PlannedStep) -> None:
        self.step = planned.step
        for chunk in planned.chunks:
            self._schedule(chunk.key, chunk.start + chunk.length)
        if planned.decoding is not None:
            self.decoding = planned.decoding
        if unknown := set(self.decoding) - self.sequences.keys():
            raise KeyError(*unknown)
        self._num_decoded.update(dict.fromkeys(self.decoding, planned.width))

    def _change_cache(self, change: trace.KVChange) -> None:
        match change:
            case trace.TablesGiven(key, num_shared, tables):
                for group, table in enumerate(tables):
                    self._hold(group, table)
                    self.findable[group].difference_update(table[num_shared:])
                self._update(key, tables=tables, num_shared_blocks=num_shared)
            case trace.TableGrown(key, group, blocks):
                self._hold(group, blocks)
                self.findable[group].difference_update(blocks)
                self._set_table(key, group, self.sequences[key].tables[group] + blocks)
            case trace.BlockDropped(key, group, index):
                self._swap(key, group, index, SINK_BLOCK)
            case trace.BlocksShared():
                self._share(change)
            case trace.StateHeld(key, group, live, kept):
                self._hold_state(key, group, live, kept)
            case trace.TablesReturned(key):
                for group, table in enumerate(self.sequences[key].tables):
                    self._let_go(group, table)
                for group, live, kept in self.sequences[key].states:
                    self._let_go(group, (live, kept))
                self._update(key, tables=(), states=(), num_shared_blocks=0)
            case _:
                self._change_findable(change)

    def _change_findable(self, change: trace.KVChange) -> None:
        """A change of no table."""
        match change:
            case trace.StateCopied(_, group, _, target):
                self.findable[group].discard(target)
            case trace.BlocksNamed(group, blocks):
                self.findable[group].update(blocks)
            case trace.BlocksFetched(blocks):
                self.findable[0].difference_update(blocks)
            case trace.BlocksLanded(blocks):
                self.findable[0].update(blocks)
            case trace.PrefixesForgotten():
                for findable in self.findable:
                    findable.clear()

    def _hold_state(self, key: int, group: int, live: int, kept: int) -> None:
        """A state's live slot is fresh, so its old content cannot be found; a snapshot was just named, so it can."""
        others = [each for each in self.sequences[key].states if each[0] != group]
        for _, *former in set(self.sequences[key].states) - set(others):
            self._let_go(group, former)
        self._hold(group, (live, kept))
        self.findable[group].discard(live)
        if kept != SINK_BLOCK:
            self.findable[group].add(kept)
        self._update(key, states=tuple(sorted([*others, (group, live, kept)])))

    def _share(self, change: trace.BlocksShared) -> None:
        for group, index, block in change.swapped:
            self._swap(change.key, group, index, block)
        sequence = self.sequences[change.key]
        for group, table in enumerate(sequence.tables):
            computed = table[sequence.num_shared_blocks : change.num_shared]
            self.findable[group].update(block for block in computed if block != SINK_BLOCK)
        self._update(change.key, num_shared_blocks=change.num_shared)

    def _swap(self, key: int, group: int, index: int, block: int) -> None:
        table = list(self.sequences[key].tables[group])
        self._let_go(group, table[index : index + 1])
        table[index] = block
        self._hold(group, table[index : index + 1])
        self._set_table(key, group, tuple(table))

    def _set_table(self, key: int, group: int, table: tuple[int, ...]) -> None:
        tables = self.sequences[key].tables
        self._update(key, tables=(*tables[:group], table, *tables[group + 1 :]))

    def _up_to_date(self, key: int) -> trace.TracedSequence:
        sequence = self.sequences[key]
        number = sequence.num_scheduled_tokens + self._num_decoded[key]
        return attrs.evolve(sequence, num_scheduled_tokens=number)

    def _schedule(self, key: int, num_tokens: int, **changes: Any) -> None:
        self._update(key, num_scheduled_tokens=num_tokens, **changes)
        del self._num_decoded[key]

    def _update(self, key: int, **changes: Any) -> None:
        self.sequences[key] = attrs.evolve(self.sequences[key], **changes)

    def _hold(self, group: int, blocks: Iterable[int]) -> None:
        self.references[group].update(block for block in blocks if block != SINK_BLOCK)

    def _let_go(self, group: int, blocks: Iterable[int]) -> None:
        self.references[group].subtract(block for block in blocks if block != SINK_BLOCK)
