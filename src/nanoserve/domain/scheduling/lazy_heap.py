"""A priority queue whose items may die in place: they are skipped when met and swept when they are half of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")

_SMALLEST_SWEEP = 64


class LazyHeap(Generic[ItemT]):
    """Smallest key first, at O(log n). Told of every death, it keeps at most as many dead items as living ones."""

    def __init__(self, is_alive: Callable[[ItemT], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[tuple[Any, int, ItemT]] = []
        self._pushed = 0
        self._deaths = 0

    def push(self, key: object, item: ItemT) -> None:
        """Add an item; equal keys come out in the order they went in."""
        self._pushed += 1
        heapq.heappush(self._entries, (key, self._pushed, item))

    def remove(self, item: ItemT) -> None:
        """Take an item out wherever it stands, at O(n)."""
        self._entries = [entry for entry in self._entries if entry[2] is not item]
        heapq.heapify(self._entries)

    def note_death(self) -> None:
        """An item has died. Sweeping costs O(n) but comes only after as many deaths."""
        self._deaths += 1
        if self._deaths >= max(_SMALLEST_SWEEP, len(self._entries) // 2):
            self._entries = [entry for entry in self._entries if self._is_alive(entry[2])]
            heapq.heapify(self._entries)
            self._deaths = 0

    def peek(self) -> tuple[Any, ItemT] | None:
        """The smallest key that is alive, with its item."""
        while self._entries and not self._is_alive(self._entries[0][2]):
            heapq.heappop(self._entries)
        return (self._entries[0][0], self._entries[0][2]) if self._entries else None

    def pop(self) -> ItemT:
        """Remove and return the item that `peek` shows."""
        return heapq.heappop(self._entries)[2]
