"""Captured CUDA graphs by key: a step that is captured once costs the host microseconds whenever it comes again.

The keys of decoding steps round sizes and lengths, so that few graphs serve all batches.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.batches import bucket_of, widths_of
from nanoserve.adapters.pytorch.garbage import no_garbage_collected
from nanoserve.kernels.device.launch import prefer_cache
from nanoserve.kernels.forms import StoredWeight, form_of
from nanoserve.kernels.linear.tuning import MOST_STRAIGHT_ROWS
from nanoserve.ports.engine_facts import EngineSizes

FIRST_GRAPHS = (1, 2, 8, 16, 32, 48, 64, 128, 256, 512)
"""Sizes of batch whose graphs are captured before the engine is ready; others are captured when they first occur."""
TYPICAL_LENGTH = 1024
"""Tokens of the rows whose graphs are captured before serving."""
LENGTH_STEP = 64
"""Tokens that a batch's longest row may grow by before the shape of its attention is chosen anew."""
PATIENCE = 256
"""So many steps of a size replay the graph of one that is 8 places larger, before they have their own; fewer, of one up to about twice as large."""
FEW_MASKS = 8
"""Where a step has no more than these, no others are sent."""
KeyT = TypeVar("KeyT", bound=Hashable)


class Graphs:
    """Graphs in one pool of memory, captured on a stream of their own; kernels of steps of two to `most_cached` tokens prefer a larger L1 cache."""

    def __init__(self, most_cached: int = 0) -> None:
        self._most = most_cached
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
        tokens = key.plain_tokens if isinstance(key, Key) else 0
        prefers = 1 < tokens <= self._most
        graph = torch.cuda.CUDAGraph(keep_graph=prefers)
        with torch.cuda.stream(self._stream), no_garbage_collected():
            # Only this thread must keep to what may be captured: another one may be allocating or waiting for an event.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
            if prefers:
                prefer_cache(graph.raw_cuda_graph())
                graph.instantiate()
        current.wait_stream(self._stream)
        self._graphs[key] = graph

    def drop(self) -> None:
        """Destroy all graphs, which gives their memory back; they are captured again when needed."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old pool ends with its last graph


class StandIns(Generic[KeyT]):
    """Steps of sizes that have no graph of their own replay those of larger ones, until that has cost `most`, by `cost(key, other)` each time.

    A capture keeps the device waiting for as long as a few hundred such steps take longer than they would by graphs of their own, and many
    sizes occur only for a moment, as while a crowd comes or goes. The choice follows from the steps alone, so that ranks choose alike.

    Attributes:
        owners: keys that have graphs of their own, or will have.
    """

    def __init__(self, most: float, cost: Callable[[KeyT, KeyT], float] = lambda _, __: 1) -> None:
        self.owners, self._most, self._cost = set[KeyT](), most, cost
        self._spent = defaultdict[KeyT, float](float)

    def choose(self, key: KeyT, others: Iterable[KeyT]) -> KeyT:
        """The key, if it owns a graph or has cost as much, or the first of `others` that does; where none does, the key owns one from now on."""
        chosen = key
        if key not in self.owners and self._spent[key] < self._most:
            chosen = next((each for each in others if each in self.owners), key)
            self._spent[key] += self._cost(key, chosen)
        self.owners.add(chosen)
        return chosen


class Key(NamedTuple):
    """How a step is launched.

    Attributes:
        places: of the batch.
        splits: parts that attention cuts caches into.
        samples: whether the step samples inside the graph; `learns`: whether it is only what a head that drafts, and states, do behind a draw outside.
        adapted: whether some of its rows have adapters.
        width: tokens of each place, which may be at its limit; 0 for one token of places that are not.
        invariant: as in `StepPlan`.
        masks: sent with a draw that has no forward pass; 0 of other steps.
    """

    places: int
    splits: int
    samples: bool
    adapted: bool = False
    width: int = 0
    learns: bool = False
    invariant: bool = False
    masks: int = 0

    @property
    def plain_tokens(self) -> int:
        """Tokens that it decodes; 0 where adapters or invariant products have other kernels."""
        return 0 if self.adapted or self.invariant else self.places * max(self.width, 1)


def most_cached(weights: Iterable[Tensor | StoredWeight]) -> int:
    """The most tokens of steps that a larger L1 cache makes faster: words of these weights go straight into registers, 4 bits in rows of 3,072 and more (a 1B's steps take up to 5% longer)."""
    straight = [each for each in weights if form_of(each).straight]
    if all(form_of(each).per_word == 1 for each in straight):
        return 8 if straight else 0
    return MOST_STRAIGHT_ROWS if min(each.shape[-1] for each in straight) >= 3072 else 0


class Keys:
    """Makes the keys of an engine's steps; `choose_splits` is that of its mixers."""

    def __init__(self, sizes: EngineSizes, choose_splits: Callable[[int, int], int]) -> None:
        self._sizes, self._most = sizes, sizes.max_num_seqs
        self._choose_splits = functools.cache(choose_splits)
        # With a quarter of the splits a long row's attention takes up to four times as long, and most of the step.
        self.stand_ins = StandIns[Key](
            8 * PATIENCE,
            lambda key, other: max(
                other.places - key.places, 8 * max(1.0, key.splits / max(other.splits, 1)) ** 2
            ),
        )

    def of(
        self,
        count: int,
        longest: int,
        *,
        special: bool,
        adapted: bool = False,
        width: int = 1,
        invariant: bool = False,
    ) -> Key:
        """The key of a step of `count` rows, the longest of so many tokens; `special` rows are drawn outside of it.

        Its width is at most the one that is planned: batches are not wider than is worth it, nor are those with adapters.
        """
        bucket = bucket_of(count, self._most)
        wide = 0
        if width > 1:
            wide = 1 if adapted else max(each for each in widths_of(bucket, self._sizes) if each <= width)
        splits = 1 if invariant else self.splits(bucket, longest)
        return Key(bucket, splits, not special, adapted, wide, invariant=invariant)

    def of_draw(self, count: int, width: int, masks: int) -> Key:
        """The key of the draw, with so many masks, of a step of `count` rows that has left its logits; what is sent has few sizes."""
        bucket = bucket_of(count, self._most)
        sent = FEW_MASKS if masks <= FEW_MASKS else bucket * max(width, 1)
        return Key(bucket, 0, samples=True, width=width, masks=sent)

    def splits(self, bucket: int, longest: int) -> int:
        """Splits of decode attention for rows of up to `longest` tokens, which is rounded up so that few answers do."""
        rounded = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self._sizes.max_model_len)
        return self._choose_splits(bucket, rounded)

    def stand_in(self, key: Key) -> Key:
        """The key whose graph the step replays: its own, or for the first few times one that computes the same."""
        return self.stand_ins.choose(key, self._nearly(key))

    def _nearly(self, key: Key) -> list[Key]:
        """Keys of plain steps that compute what this one's does, the nearest first: any number of splits is right, and places beyond the batch are padded.

        A further place costs more than other splits: products of two rows with 4-bit weights take half as long again as of one.
        """
        if key.masks or key.adapted or key.width:
            return []
        alike = [each for each in self.stand_ins.owners if each.splits and each[2:] == key[2:]]
        return sorted(
            (each for each in alike if key.places <= each.places <= 2 * key.places + 8),
            key=lambda each: (each.places, abs(math.log(each.splits / key.splits)), each.splits),
        )
