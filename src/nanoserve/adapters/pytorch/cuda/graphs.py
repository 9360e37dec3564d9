"""Captured CUDA graphs by key: a step that is captured once costs the host microseconds whenever it comes again."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

KeyT = TypeVar("KeyT", bound=Hashable)


class Graphs:
    """Graphs in one pool of memory, captured on a stream of their own."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def replay(self, key: Hashable) -> None:
        """Queue the graph of this key."""
        self._graphs[key].replay()

    def capture(self, key: Hashable, launch: Callable[[], object]) -> None:
        """Capture the launches of `launch`, without running them; takes about 2 ms for a model of 16 layers.

        Every kernel must have been compiled and loaded before.
        """
        current = torch.cuda.current_stream()
        # What ran before must be over before its memory is captured into a pool.
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), no_garbage_collected():
            # Only this thread must keep to what may be captured: another one may be allocating or waiting for an event.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        self._graphs[key] = graph

    def drop(self) -> None:
        """Destroy all graphs, which gives their memory back; they are captured again when needed."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old pool ends with its last graph


class StandIns(Generic[KeyT]):
    """Steps of sizes that have no graph of their own replay those of slightly larger ones, until they have come `patience` times.

    A capture keeps the device waiting for as long as a few hundred such steps take longer than they would by graphs of their own, and many
    sizes occur only for a moment, as while a crowd comes or goes. The choice follows from the steps alone, so that ranks choose alike.

    Attributes:
        owners: keys that have graphs of their own, or will have.
    """

    def __init__(self, patience: int) -> None:
        self.owners = set[KeyT]()
        self._patience = patience
        self._asked = Counter[KeyT]()

    def choose(self, key: KeyT, others: Iterable[KeyT]) -> KeyT:
        """The key, if it owns a graph or has come so often, or the first of `others` that does; where none does, the key owns one from now on."""
        self._asked[key] += 1
        if key not in self.owners and self._asked[key] <= self._patience:
            key = next((each for each in others if each in self.owners), key)
        self.owners.add(key)
        return key


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Hold the garbage collector while a graph is captured.

    It may run at any allocation and free another graph or its memory: CUDA forbids that in a thread that captures, and the
    capture would be invalid.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
