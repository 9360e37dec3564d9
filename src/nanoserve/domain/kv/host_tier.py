"""The slots of host memory: their contents, their use, and the order of eviction."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from nanoserve.ports.kv import BlockHash


class SlotAccountingError(AssertionError):
    """A slot was completed, pinned or unpinned in the wrong order: a bug in the control plane."""


class HostTier:
    """Slots 0 to `num_slots` - 1. A slot is free, or *being written*, or *ready*: its content can be found by its name.

    A ready slot is *pinned* while it is read. What is being written or pinned is never given to another content; of the other
    ready ones, the least recently used goes first.

    Attributes:
        on_lost: called with the name of each content that was ready and cannot be found any more.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self.on_lost: Callable[[BlockHash], None] | None = None
        self._free = list(range(num_slots - 1, -1, -1))
        self._slot_of: dict[BlockHash, int] = {}
        self._name_of: dict[int, BlockHash] = {}
        self._writing: set[int] = set()
        self._pins: Counter[int] = Counter()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_held(self) -> int:
        """Contents that can be found, or will be."""
        return len(self._slot_of)

    @property
    def findable(self) -> set[BlockHash]:
        """The contents that are ready."""
        return {name for name, slot in self._slot_of.items() if slot not in self._writing}

    def knows(self, name: BlockHash) -> bool:
        """True if the content is in a slot, or being written into one."""
        return name in self._slot_of

    def find(self, name: BlockHash) -> int | None:
        """The slot in which the content is ready."""
        slot = self._slot_of.get(name)
        return None if slot in self._writing else slot

    def touch(self, name: BlockHash) -> None:
        """The content was used now."""
        slot = self._slot_of.get(name)
        if slot is not None and slot in self._idle:
            self._idle.move_to_end(slot)

    def reserve(self, name: BlockHash) -> int | None:
        """A slot to write a new content into; None if all are in use."""
        if name in self._slot_of:
            raise SlotAccountingError(f"the content {name!r} is in a slot already")
        if self._free:
            slot = self._free.pop()
        elif self._idle:
            slot, _ = self._idle.popitem(last=False)
            del self._slot_of[self._name_of[slot]]
            self.num_evicted += 1
            if self.on_lost is not None:
                self.on_lost(self._name_of[slot])
        else:
            return None
        self._slot_of[name], self._name_of[slot] = slot, name
        self._writing.add(slot)
        return slot

    def complete(self, slot: int, *, is_good: bool) -> bool:
        """The writing is done; says whether the content can be found from now on."""
        if slot not in self._writing:
            raise SlotAccountingError(f"slot {slot} is not being written")
        self._writing.remove(slot)
        if not is_good:
            self._disown(slot)
        if slot in self._name_of:
            self._idle[slot] = None
            return True
        self._free.append(slot)
        return False

    def abandon(self, slot: int) -> None:
        """Give up a content that is being written: it will not be found, and its slot is in use until the writing is done."""
        if slot not in self._writing:
            raise SlotAccountingError(f"slot {slot} is not being written")
        self._disown(slot)

    def pin(self, slot: int) -> None:
        """The content of a ready slot is being read."""
        if not self._pins[slot]:
            if slot not in self._idle:
                raise SlotAccountingError(f"slot {slot} holds nothing that could be read")
            del self._idle[slot]
        self._pins[slot] += 1

    def unpin(self, slot: int) -> None:
        """It was read."""
        if not self._pins[slot]:
            raise SlotAccountingError(f"slot {slot} is not pinned")
        self._pins[slot] -= 1
        if not self._pins[slot]:
            del self._pins[slot]
            if slot in self._name_of:
                self._idle[slot] = None
            else:
                self._free.append(slot)

    def forget(self) -> None:
        """No content can be found any more; slots in use become free after their use."""
        if self.on_lost is not None:
            for name in self.findable:
                self.on_lost(name)
        self._free.extend(self._idle)
        for each in (self._idle, self._slot_of, self._name_of):
            each.clear()

    def _disown(self, slot: int) -> None:
        name = self._name_of.pop(slot, None)
        if name is not None:
            del self._slot_of[name]

    def audit(self, writing: Counter[int], pins: Counter[int]) -> None:
        """Check the slots against those that are being written, once each, and those that are being read."""
        if Counter(self._writing) != writing:
            raise SlotAccountingError(f"slots {self._writing} count as being written, and {writing} are")
        if +self._pins != +pins:
            raise SlotAccountingError(f"slots {self._pins} count as being read, and {pins} are")
        every = [*self._free, *self._idle, *self._writing, *self._pins]
        if sorted(every) != list(range(self.num_slots)):
            raise SlotAccountingError("a slot is lost, or in two states")
        if {slot: name for name, slot in self._slot_of.items()} != self._name_of:
            raise SlotAccountingError("the two maps of slots disagree")
        if not set(self._idle) <= set(self._name_of) or set(self._free) & set(self._name_of):
            raise SlotAccountingError("a ready slot has no name, or a free one has")
