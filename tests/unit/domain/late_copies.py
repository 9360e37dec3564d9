"""Copies that take their time: a runner and a directory that do them arbitrarily late, and spoil their targets meanwhile.

What is read before it is reported, given away before it is read, or counted after a failure makes a plan that the memory runner
calls broken, or a wrong text.
"""

from __future__ import annotations

import random
from typing import Any

from nanoserve.ports.engine_facts import TierCounts
from nanoserve.ports.kv import BlockHash, DirectoryWork
from nanoserve.ports.step import SlotCopy, StepPlan
from tests.unit.domain.world import RecordingRunner

SPOILED = (-1, -1)
"""A fact that no step has written."""


class LateRunner(RecordingRunner):
    """Does each copy at a random moment of this step or later ones, in any order."""

    def __init__(self, *args: Any, dice: random.Random, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dice = dice
        self._under_way: dict[int, list[tuple[SlotCopy, bool]]] = {}

    def _carry(self, plan: StepPlan) -> tuple[int, ...]:
        if plan.starts_anew:
            self._under_way.clear()
        if plan.stores or plan.loads:
            copies = [(each, False) for each in plan.stores] + [(each, True) for each in plan.loads]
            self._under_way[plan.step] = self._dice.sample(copies, len(copies))
        everything = range(self.block_size)
        for each in plan.stores:
            self.slots[each.slot] = dict.fromkeys(everything, SPOILED)
        for each in plan.loads:
            self.store[0].update({(each.block, place): SPOILED for place in everything})
        return tuple(step for step in list(self._under_way) if self._go_on_with(step))

    def _go_on_with(self, step: int) -> bool:
        copies = self._under_way[step]
        while copies and self._dice.random() < 0.7:
            copy, is_load = copies.pop()
            if is_load:
                self._load_block(copy)
            else:
                self._store_block(copy)
        is_reported = not copies and self._dice.random() < 0.7
        if is_reported:
            del self._under_way[step]
        return is_reported


class LateDirectory:
    """A directory in memory that reads and writes a runner's slots when it likes, and sometimes fails."""

    def __init__(self, runner: RecordingRunner, dice: random.Random) -> None:
        self.blocks: dict[BlockHash, dict[int, tuple[int, int]]] = {}
        self.num_read, self.room = 0, 1000
        self._runner, self._dice = runner, dice
        self._under_way: list[tuple[BlockHash, int, bool]] = []
        self._forgotten: list[tuple[BlockHash, int, bool]] = []

    def holds(self, name: BlockHash, /) -> bool:
        return name in self.blocks

    def read(self, name: BlockHash, slot: int, /) -> None:
        self._runner.slots[slot] = {0: SPOILED}
        self._under_way.append((name, slot, True))

    def write(self, name: BlockHash, slot: int, /) -> bool:
        is_taken = self.room > 0 and self._dice.random() < 0.8
        self.room -= is_taken
        if is_taken:
            self._under_way.append((name, slot, False))
        return is_taken

    def finished(self) -> list[DirectoryWork]:
        done = [each for each in self._under_way if self._dice.random() < 0.5]
        self._under_way = [each for each in self._under_way if each not in done]
        return [self._do(*each) for each in done]

    def _do(self, name: BlockHash, slot: int, is_read: bool) -> DirectoryWork:
        is_forgotten = (name, slot, is_read) in self._forgotten
        if not is_read and is_forgotten:
            return DirectoryWork(name, slot, is_read=False, is_good=False)
        if not is_read:
            self.blocks[name] = dict(self._runner.slots[slot])
            return DirectoryWork(name, slot, is_read=False, is_good=True)
        is_good = name in self.blocks and self._dice.random() < 0.9
        if is_good:
            self._runner.slots[slot] = dict(self.blocks[name])
            self.num_read += 1
        else:
            self.blocks.pop(name, None)
        return DirectoryWork(name, slot, is_read=True, is_good=is_good)

    def rest(self) -> None:
        pass

    def forget(self) -> None:
        self.blocks.clear()
        self._forgotten = list(self._under_way)

    def counts(self) -> TierCounts:
        return TierCounts()
