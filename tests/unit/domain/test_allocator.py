"""The block allocator against a naive one, and what its audit sees."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanoserve.domain.kv.allocator import BlockAccountingError, BlockAllocator, OutOfBlocksError


@attrs.define
class NaiveAllocator:
    """The same over plain lists: `blank` and `kept` in the order in which they are handed out and evicted."""

    blank: list[int]
    references: Counter[int] = attrs.field(factory=Counter)
    kept: list[int] = attrs.field(factory=list)
    content_of: dict[int, int] = attrs.field(factory=dict)

    def find(self, content: int) -> int | None:
        return next((block for block, each in self.content_of.items() if each == content), None)

    def release(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            (self.kept if block in self.content_of else self.blank).append(block)


class AllocatorMachine(RuleBasedStateMachine):
    """Random calls; after each one both allocators must agree about everything that can be seen."""

    @initialize(num_blocks=st.integers(1, 7))
    def build(self, num_blocks: int) -> None:
        self.real = BlockAllocator(num_blocks)
        self.naive = NaiveAllocator(list(range(1, num_blocks + 1)))
        self.num_blocks, self.num_evicted = num_blocks, 0

    def held(self) -> list[int]:
        return sorted(self.naive.references)

    @rule(count=st.integers(0, 5))
    def allocate(self, count: int) -> None:
        self.take(count)

    @rule(content=st.integers(0, 9))
    def compute_and_release(self, content: int) -> None:
        for block in self.take(1):
            self.name(block, content)
            self.release(block)

    def take(self, count: int) -> list[int]:
        if count > len(self.naive.blank) + len(self.naive.kept):
            with pytest.raises(OutOfBlocksError):
                self.real.allocate(count)
            return []
        got = self.real.allocate(count)
        assert len(got) == len(set(got)) == count
        from_blank = min(count, len(self.naive.blank))
        evicted, self.naive.kept = (
            self.naive.kept[: count - from_blank],
            self.naive.kept[count - from_blank :],
        )
        assert set(got) <= set(self.naive.blank) | set(evicted)
        assert [block for block in got if block in evicted] == evicted
        self.naive.blank = [block for block in self.naive.blank if block not in got]
        for block in evicted:
            del self.naive.content_of[block]
        self.num_evicted += len(evicted)
        self.naive.references.update(got)
        return got

    @rule(block=st.integers(1, 7))
    def retain(self, block: int) -> None:
        if block > self.num_blocks:
            return
        if block in self.naive.blank:
            with pytest.raises(BlockAccountingError):
                self.real.retain(block)
            return
        self.real.retain(block)
        if block in self.naive.kept:
            self.naive.kept.remove(block)
        self.naive.references[block] += 1

    @rule(block=st.integers(1, 7))
    def release(self, block: int) -> None:
        if block > self.num_blocks:
            return
        if block not in self.naive.references:
            with pytest.raises(BlockAccountingError, match="freed twice"):
                self.real.release(block)
            return
        self.real.release(block)
        self.naive.release(block)

    @precondition(lambda self: not set(self.held()) <= set(self.naive.content_of))
    @rule(data=st.data(), content=st.integers(0, 9))
    def register(self, data: st.DataObject, content: int) -> None:
        self.name(data.draw(st.sampled_from(sorted(set(self.held()) - set(self.naive.content_of)))), content)

    def name(self, block: int, content: int) -> None:
        known = self.naive.find(content)
        assert self.real.register(block, content) == (known or block)
        if known is None:
            self.naive.content_of[block] = content

    @rule()
    def forget(self) -> None:
        self.real.forget()
        self.naive.content_of.clear()
        self.naive.blank += self.naive.kept
        self.naive.kept.clear()

    @invariant()
    def agree(self) -> None:
        self.real.audit(self.naive.references)
        assert self.real.num_free == len(self.naive.blank) + len(self.naive.kept)
        assert self.real.num_evicted == self.num_evicted
        for block in range(1, self.num_blocks + 1):
            assert self.real.reference_count(block) == self.naive.references[block]
        for content in range(10):
            assert self.real.find(content) == self.naive.find(content)


TestAllocatorMachine = AllocatorMachine.TestCase


@pytest.mark.parametrize("fault", ["leak", "unbacked", "lost"])
def test_the_audit_sees_every_fault(fault: str) -> None:
    allocator = BlockAllocator(3)
    known, block = allocator.allocate(2)
    allocator.register(known, 1)
    allocator.release(known)
    if fault == "leak":
        allocator.allocate(1)
    elif fault == "unbacked":
        allocator.release(block)
    else:
        allocator.num_blocks -= 1
    with pytest.raises(BlockAccountingError):
        allocator.audit({block: 1})
