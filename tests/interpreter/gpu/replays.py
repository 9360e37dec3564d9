"""Graphs that note what is replayed, with a GPU and without one."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from nanoserve.adapters.pytorch.cuda.graphs import Graphs


class NotedReplays(Graphs):
    """A GPU's own."""

    def __init__(self) -> None:
        super().__init__()
        self.replayed: list[Hashable] = []

    def replay(self, key: Hashable) -> None:
        self.replayed.append(key)
        super().replay(key)


class KeptLaunches(NotedReplays):
    """Replays launch again what was captured: over the views of the arena that it had then, and what they hold now."""

    def __init__(self) -> None:  # no GPU's pool
        self._launches: dict[Hashable, Callable[[], object]] = {}
        self.replayed: list[Hashable] = []

    def __contains__(self, key: Hashable) -> bool:
        return key in self._launches

    def replay(self, key: Hashable) -> None:
        self.replayed.append(key)
        self._launches[key]()

    def capture(self, key: Hashable, launch: Callable[[], object]) -> None:
        self._launches[key] = launch

    def drop(self) -> None:
        self._launches.clear()
