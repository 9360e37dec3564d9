"""Whole decode steps as CUDA graphs: captured once per size of batch and replayed, which costs the host microseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SMALL_BUCKETS = (1, 2, 4, 8)
BUCKET_STEP = 8

Key = tuple[int, int, bool]
"""Places of the batch, parts that attention cuts caches into, and whether the step samples inside the graph."""


def bucket_of(count: int, most: int) -> int:
    """The number of places that a batch of `count` rows is padded to: 1, 2, 4, then multiples of 8, at most `most`."""
    for bucket in SMALL_BUCKETS:
        if count <= bucket:
            return min(bucket, most)
    return min(-(-count // BUCKET_STEP) * BUCKET_STEP, most)


def buckets(most: int) -> list[int]:
    """Every number of places a batch of up to `most` rows can be padded to, ascending."""
    return sorted({bucket_of(count, most) for count in range(1, most + 1)})


class Graphs:
    """Captured steps by key, all in one memory pool.

    `launch` queues a step's kernels for a key and `rehearse` does so over padded places, without effect on any row:
    every kernel must have been compiled and loaded before it is captured.
    """

    def __init__(self, launch: Callable[[Key], None], rehearse: Callable[[Key], None]) -> None:
        self._launch = launch
        self._rehearse = rehearse
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    def replay(self, key: Key) -> None:
        """Queue a step, capturing it first if it is the first of its kind."""
        graph = self._graphs.get(key)
        if graph is None:
            graph = self.capture(key)
        graph.replay()

    def capture(self, key: Key) -> torch.cuda.CUDAGraph:
        """Capture a step without running it; takes about 2 ms for a model of 16 layers."""
        self._rehearse(key)
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._launch(key)
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        self._graphs[key] = graph
        return graph

    def drop(self) -> None:
        """Forget all graphs, which gives their memory back; they are captured again when needed."""
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old pool ends with its last graph
