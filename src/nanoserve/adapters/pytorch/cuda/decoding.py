"""Steps in which every row decodes, kernel by kernel or as whole CUDA graphs, and rehearsals of all that serving can meet.

A graph is captured once per size of batch and replayed, which costs the host microseconds. Every kernel must have been compiled
and loaded before it is captured, so each capture begins with a rehearsal. Where rows follow a grammar, the forward pass is one
graph and the draw another, because their masks come between the two.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep, describe
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.expansion import Expansion
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.ports.step import Chunk

FIRST_GRAPHS = (1, 2, 8, 16, 32, 64, 128, 256, 512)
"""Sizes of batch whose graphs are captured before the engine is ready; the others when they first occur."""
TYPICAL_LENGTH = 512
"""Tokens of the rows whose graphs are captured before serving."""
LENGTH_STEP = 64
"""Tokens that a batch's longest row may grow by before the shape of its attention is chosen anew."""
SMALL_BUCKETS = (1, 2, 4, 8)
BUCKET_STEP = 8
MANY_ROWS = 256
MANY_STEP = 16

Key = tuple[int, int, bool]
"""Places of the batch, parts that attention cuts caches into, and whether the step samples inside the graph."""
DRAW_ALONE = 0
"""In a key, instead of parts: no forward pass, but the draw of the logits that it left, with masks on them."""


def bucket_of(count: int, most: int) -> int:
    """The number of places that a batch of `count` rows is padded to: 1, 2, 4, then multiples of 8, beyond 256 of 16, at most `most`."""
    for bucket in SMALL_BUCKETS:
        if count <= bucket:
            return min(bucket, most)
    step = BUCKET_STEP if count <= MANY_ROWS else MANY_STEP
    return min(-(-count // step) * step, most)


def buckets(most: int) -> list[int]:
    """Every number of places a batch of up to `most` rows can be padded to, ascending."""
    return sorted({bucket_of(count, most) for count in range(1, most + 1)})


@attrs.frozen(kw_only=True)
class Settings:
    """How steps are launched.

    Attributes:
        graphs: whether decoding steps are captured.
        pdl: whether their kernels overlap, see `kernels.device.pdl`.
        tile_queries: queries per tile of prefill attention.
        choose_splits: splits of decode attention for a bucket and the length of its longest row.
        token_counts: of mixed steps, one for each way in which these launch what depends on their tokens.
        expansion: None, or how chunks' latents are expanded.
    """

    graphs: bool
    pdl: bool
    tile_queries: int
    choose_splits: Callable[[int, int], int]
    token_counts: Sequence[int] = ()
    expansion: Expansion | None = None


class Decoding:
    """Launches decoding steps over the arena's places, and rehearses all steps over padded ones.

    `rehearsal` launches the same kernels as `launcher`, through fewer layers.
    """

    def __init__(
        self,
        launcher: ForwardLauncher,
        rehearsal: ForwardLauncher,
        arena: Arena,
        drawing: Drawing,
        settings: Settings,
    ) -> None:
        self._launcher, self._rehearsal, self._arena, self._drawing = launcher, rehearsal, arena, drawing
        self._pdl, self._tile_queries = settings.pdl, settings.tile_queries
        self._token_counts = settings.token_counts
        self._expansion = settings.expansion and attrs.evolve(settings.expansion, always=True)
        self._most, self._max_model_len = arena.sizes.max_num_seqs, arena.sizes.max_model_len
        self._sink_places = torch.full_like(arena.places, arena.sink_row)
        self._choose_splits = functools.cache(settings.choose_splits)
        self._graphs: dict[Key, torch.cuda.CUDAGraph] | None = None
        if settings.graphs:
            self._graphs = {}
            self._pool = torch.cuda.graph_pool_handle()
            self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def key(self, count: int, longest: int, *, special: bool) -> Key:
        """What a step of `count` rows, the longest of so many tokens, is launched as; `special` rows are drawn outside of it."""
        bucket = bucket_of(count, self._most)
        return bucket, self.splits(bucket, longest), not special

    def draw_key(self, count: int) -> Key:
        """What the draw of a step of `count` rows, some of which have masks, is launched as."""
        return bucket_of(count, self._most), DRAW_ALONE, True

    def splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for rows of up to `longest` tokens, which is rounded up so that few answers do."""
        rounded = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self._max_model_len)
        return self._choose_splits(bucket, rounded)

    def every_splits(self, bucket: int) -> set[int]:
        """Each number of splits that a batch of this size can meet: every one is another kernel to add them up."""
        longest, found = self._max_model_len, set[int]()
        while longest:
            found |= {self.splits(bucket, longest), self.splits(bucket, longest // 2 + 1)}
            longest //= 2
        return found

    def run(self, key: Key) -> str:
        """Queue a step; returns how it was launched, graph or eager."""
        if self._graphs is None:
            self._launch(key)
            return "eager"
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._capture(self._graphs, key)
        graph.replay()
        return "graph"

    def rehearse_all(self) -> None:
        """Launch every kernel of any step, of rows that decode, of chunks and of both together; no row changes."""
        for size, every_splits in self._batches():
            for splits in every_splits:
                self.rehearse((size, splits, True))
        self._rehearse_chunks()
        self._rehearse_beside_a_chunk()

    def _batches(self) -> Iterator[tuple[int, set[int]]]:
        """Every size of batch, the largest first, and splits to rehearse it with: all of a common size, of the others new ones or one."""
        common = {bucket_of(size, self._most) for size in FIRST_GRAPHS}
        found = {size: self.every_splits(size) for size in buckets(self._most)}
        seen = set[int]().union(*(found[size] for size in common))
        for size in sorted(found, reverse=True):
            if size not in common:
                found[size] = found[size] - seen or {min(found[size])}
                seen |= found[size]
            yield size, found[size]

    def _rehearse_chunks(self) -> None:
        """Chunks alone: one whose latents are expanded, as many as there can be, and each number of `token_counts`."""
        sizes = self._arena.sizes
        if self._expansion is not None:
            self._run_chunks([self._chunk_tokens()], self._expansion)
        self._run_chunks([1] * min(sizes.max_num_seqs, sizes.max_num_batched_tokens))
        for count in self._token_counts:
            whole, rest = divmod(count, sizes.max_model_len)
            self._run_chunks([sizes.max_model_len] * whole + [rest] * (rest > 0))

    def _run_chunks(self, lengths: Sequence[int], expansion: Expansion | None = None) -> None:
        step = self._describe_chunks(lengths, expansion)
        counts = (step.num_chunk_tokens, step.num_chunks, step.num_tiles, 0)
        self._rehearsal.mixed(*counts, splits=1, rounds=step.rounds)

    def _rehearse_beside_a_chunk(self) -> None:
        """Every size of batch beside a chunk, and draws outside of graphs."""
        launcher, tokens = self._rehearsal, self._chunk_tokens()
        self._describe_chunks([tokens])
        most_beside = self._arena.sizes.max_num_batched_tokens - tokens
        for size, every_splits in self._batches():
            for splits in every_splits:
                hidden = launcher.mixed(tokens, 1, 1, min(size, most_beside), splits=splits)
            logits = launcher.chosen_logits(launcher.choose(hidden, size))
            for shaped in (logits, logits.float()):  # penalties and biases make float32
                self._drawing.draw(shaped, self._sink_places[:size], pdl=False)
                self._drawing.note_draw()
                self._drawing.rehearse_mask(shaped)

    def _chunk_tokens(self) -> int:
        """Of a chunk that is one tile and leaves room for a row that decodes."""
        sizes = self._arena.sizes
        return max(1, min(self._tile_queries, sizes.max_model_len, sizes.max_num_batched_tokens - 1))

    def _describe_chunks(self, lengths: Sequence[int], expansion: Expansion | None = None) -> ChunkStep:
        """Write chunks of the sink row into the arena."""
        arena = self._arena
        chunks = tuple(Chunk(arena.sink_row, 0, length, samples=False) for length in lengths)
        step = describe(arena, chunks, None, self._tile_queries, expansion)
        arena.write("logits_indices", [0] * arena.sizes.max_num_seqs)
        arena.flush()
        return step

    def rehearse(self, key: Key) -> None:
        """Launch a step over padded places: every kernel runs, over few layers, and no row changes."""
        self._step(self._rehearsal, self._sink_places, key)
        if key[2]:
            self._drawing.note_draw()

    def capture_first(self) -> None:
        """Capture the first graphs. The largest comes first: later ones fit into the memory that it took."""
        if self._graphs is not None:
            for bucket in sorted({bucket_of(size, self._most) for size in FIRST_GRAPHS}, reverse=True):
                self._capture(self._graphs, self.key(bucket, TYPICAL_LENGTH, special=False))

    def drop_graphs(self) -> None:
        """Destroy all graphs, which gives their memory back; they are captured again when needed."""
        if self._graphs is not None:
            for graph in self._graphs.values():
                graph.reset()
            self._graphs.clear()
            self._pool = torch.cuda.graph_pool_handle()  # the old pool ends with its last graph

    def _capture(self, graphs: dict[Key, torch.cuda.CUDAGraph], key: Key) -> torch.cuda.CUDAGraph:
        """Capture a step without running it; takes about 2 ms for a model of 16 layers."""
        self.rehearse(key)
        current = torch.cuda.current_stream()
        self._stream.wait_stream(
            current
        )  # the rehearsal must be over before its memory is captured into a pool
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), no_garbage_collected():
            # Only this thread must keep to what may be captured: another one may be allocating or waiting for an event.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._launch(key)
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        graphs[key] = graph
        return graph

    def _launch(self, key: Key) -> None:
        self._step(self._launcher, self._arena.places, key)

    def _step(self, launcher: ForwardLauncher, places: Tensor, key: Key) -> None:
        bucket, splits, samples = key
        if splits == DRAW_ALONE:
            self._drawing.draw_masked(places[:bucket], pdl=self._pdl)
            return
        logits = launcher.decode(places[:bucket], splits=splits, pdl=self._pdl)
        if samples:
            self._drawing.draw(logits, places[:bucket], pdl=self._pdl)


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Hold the garbage collector while a graph is captured.

    It may run at any allocation, and what it frees may be another graph, or memory of one: CUDA forbids to destroy either in a
    thread that captures, and the capture would end as invalid.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
